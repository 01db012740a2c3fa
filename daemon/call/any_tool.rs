//! Tools by their names, with parameters as JSON: what typed calls do, for those who have no types.

mod custom;

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, LazyLock},
};

use prost::Message;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{
    Begun, Checked, InPlace, LetIn, Pipeline, access::principal::Principal, admission::Applicant,
    context::Incoming, envelope::Ran, idempotency::Ticket, until_its_time_is_up,
};
use crate::daemon::{
    catalog::{Catalog, custom::CustomTool, nearest},
    dialect::Boxed,
    error::{Error, Reason},
    tool::{
        Approved, Tool, apply_patch::ApplyPatch, await_job::AwaitJob,
        create_directory::CreateDirectory, delete_path::DeletePath, edit_file::EditFile,
        edit_notebook::EditNotebook, fetch_url::FetchUrl, last_command::LastCommand,
        list_directory::ListDirectory, list_files::ListFiles, move_path::MovePath,
        read_file::ReadFile, read_notebook::ReadNotebook, run::Run, search::Search,
        stat_path::StatPath, write_file::WriteFile,
    },
};

/// What it costs to look at a byte of JSON, as so many of a message: values are made of it, and a message of
/// these.
const COST_OF_JSON: usize = 4;

/// Any tool.
pub(super) trait AnyTool: Send + Sync {
    /// Looks whether somebody may call it at all, whatever with, by its name or by the one that it is `said` by
    /// in a dialect.
    fn is_open(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        said: Option<&str>,
    ) -> Result<(), Error>;

    /// What it costs to look at a byte of its parameters, as so many of plain text.
    fn cost(&self) -> usize;

    /// Looks whether a call could be made, and does nothing. Takes its time where there is much to look at.
    fn check(
        &self,
        pipeline: &Pipeline,
        incoming: Incoming,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn CheckedCall>, Error>;

    /// Whether a repeated call would do something a second time.
    fn changes_something(&self, pipeline: &Pipeline) -> bool;

    /// The answer to a repeated call whose first one the daemon died under, as this step of its session.
    fn lost(&self, pipeline: &Pipeline, step: Option<u64>) -> Result<Answered, Error>;
}

/// A call of which nothing is known to be wrong.
pub(super) trait CheckedCall: Send {
    /// Looks whether it may be made, and waits until somebody has decided, where the policy says so.
    fn let_in(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
    ) -> Boxed<'_, Result<Box<dyn LetInCall>, Error>>;

    /// Lets it in, waits for a place for it, and starts it. Whoever has the request id of its `ticket`
    /// waits for it.
    fn begin<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        ticket: Option<&'a Ticket>,
    ) -> Boxed<'a, Result<Going, Error>>;
}

/// A call that may be made.
pub(super) trait LetInCall: Send {
    /// The approval, where somebody was asked.
    fn approved(&self) -> Option<Approved>;

    /// Whether it still may be made: it may be long since that was looked at.
    fn stands(&self, pipeline: &Arc<Pipeline>) -> Boxed<'static, Result<bool, Error>>;

    /// What it wants, as a call of `principal`.
    fn applicant<'a>(&'a self, principal: &'a Principal) -> Applicant<'a>;

    /// Records that it starts, and starts it.
    fn begin(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        place: InPlace,
    ) -> Boxed<'_, Result<Going, Error>>;
}

/// A call that goes on.
pub(super) struct Going {
    /// Its step of the session.
    pub(super) step: u64,
    /// Tells it to end at once.
    pub(super) abandon: CancellationToken,
    /// Its answer, once it has one. Dropped, it is told to end.
    pub(super) answer: Boxed<'static, Result<Answered, Error>>,
}

/// What a tool has answered.
pub(super) struct Answered {
    /// Its fields.
    pub(super) data: Map<String, Value>,
    /// What a command has left, if that was one.
    pub(super) ran: Ran,
}

struct Typed<T>(PhantomData<fn() -> T>);

/// A call of the tool `T`, and whose it is.
struct OfTool<T: Tool> {
    incoming: Incoming,
    checked: Checked<T>,
}

/// The tools of the contract, by their names.
type Tools = BTreeMap<&'static str, Box<dyn AnyTool>>;

static TOOLS: LazyLock<Tools> = LazyLock::new(|| {
    let mut tools = Tools::new();
    add::<ApplyPatch>(&mut tools);
    add::<AwaitJob>(&mut tools);
    add::<CreateDirectory>(&mut tools);
    add::<DeletePath>(&mut tools);
    add::<EditFile>(&mut tools);
    add::<EditNotebook>(&mut tools);
    add::<FetchUrl>(&mut tools);
    add::<LastCommand>(&mut tools);
    add::<ListDirectory>(&mut tools);
    add::<ListFiles>(&mut tools);
    add::<MovePath>(&mut tools);
    add::<ReadFile>(&mut tools);
    add::<ReadNotebook>(&mut tools);
    add::<Run>(&mut tools);
    add::<Search>(&mut tools);
    add::<StatPath>(&mut tools);
    add::<WriteFile>(&mut tools);
    tools
});

fn add<T: Tool>(tools: &mut Tools)
where
    T::Response: Message + Default,
{
    tools.insert(T::NAME, Box::new(Typed::<T>(PhantomData)));
}

/// The tool of this name. Where there is none, `principal` is told those that there are for it.
pub(super) fn find(
    name: &str,
    pipeline: &Pipeline,
    principal: &Principal,
) -> Result<&'static dyn AnyTool, Error> {
    if let Some(tool) = pipeline.catalog.custom(name) {
        return Ok(tool);
    }
    TOOLS.get(name).map(Box::as_ref).ok_or_else(|| {
        let known = names(&pipeline.catalog);
        let is_there = |tool: &&str| {
            principal.may_call(tool).is_ok() && pipeline.is_switched_on(tool, None).is_ok()
        };
        let known: Vec<_> = known.filter(is_there).collect();
        let text = format!("there is {}", nearest::no_tool(name, &known));
        Error::new(Reason::UnknownTool, text).with("tool", name)
    })
}

/// The names of all of them: first of those of the contract, then of those of the configuration.
pub(super) fn names(catalog: &Catalog) -> impl Iterator<Item = &'static str> {
    let custom = catalog.customs().map(CustomTool::name);
    TOOLS.keys().copied().chain(custom)
}

/// What it costs to look at so many bytes of JSON, as so many of plain text.
pub(super) fn cost_of_json(bytes: usize) -> usize {
    bytes.saturating_mul(COST_OF_JSON)
}

/// What it costs to look at so many bytes of parameters for the tool of this name, if there is one.
pub(super) fn cost(name: &str, catalog: &Catalog, bytes: usize) -> usize {
    let custom = catalog.custom(name).map(AnyTool::cost);
    let cost = custom.or_else(|| TOOLS.get(name).map(|tool| tool.cost()));
    bytes.saturating_mul(cost.unwrap_or(COST_OF_JSON))
}

impl<T: Tool> AnyTool for Typed<T>
where
    T::Response: Message + Default,
{
    fn is_open(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        said: Option<&str>,
    ) -> Result<(), Error> {
        principal.has_role(pipeline.spec::<T>()?.role, T::NAME)?;
        pipeline.is_switched_on(T::NAME, said)
    }

    fn cost(&self) -> usize {
        T::COST * COST_OF_JSON
    }

    fn check(
        &self,
        pipeline: &Pipeline,
        incoming: Incoming,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn CheckedCall>, Error> {
        let request = pipeline.spec::<T>()?.read(params)?;
        let checked = pipeline.check::<T>(&incoming, request)?;
        Ok(Box::new(OfTool { incoming, checked }))
    }

    fn changes_something(&self, pipeline: &Pipeline) -> bool {
        pipeline.changes_something::<T>()
    }

    fn lost(&self, pipeline: &Pipeline, step: Option<u64>) -> Result<Answered, Error> {
        answered::<T>(pipeline, &T::lost(step)?)
    }
}

impl<T: Tool> CheckedCall for OfTool<T>
where
    T::Response: Message + Default,
{
    fn let_in(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
    ) -> Boxed<'_, Result<Box<dyn LetInCall>, Error>> {
        Box::pin(async move {
            let let_in = pipeline.let_in::<T>(self.incoming, self.checked).await?;
            Ok(Box::new(let_in) as Box<dyn LetInCall>)
        })
    }

    fn begin<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        ticket: Option<&'a Ticket>,
    ) -> Boxed<'a, Result<Going, Error>> {
        Box::pin(async move {
            let begun = pipeline.begin::<T>(self.incoming, self.checked, ticket);
            Ok(going(begun.await?, pipeline))
        })
    }
}

impl<T: Tool> LetInCall for LetIn<T>
where
    T::Response: Message + Default,
{
    fn approved(&self) -> Option<Approved> {
        self.permitted.approved()
    }

    fn stands(&self, pipeline: &Arc<Pipeline>) -> Boxed<'static, Result<bool, Error>> {
        let (pipeline, judged) = (Arc::clone(pipeline), self.judged.clone());
        let principal = Arc::clone(&self.incoming.principal);
        let is_approved = self.approved().is_some();
        Box::pin(async move { pipeline.stands(&principal, judged, is_approved).await })
    }

    fn applicant<'a>(&'a self, principal: &'a Principal) -> Applicant<'a> {
        self.applicant(principal)
    }

    fn begin(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        place: InPlace,
    ) -> Boxed<'_, Result<Going, Error>> {
        Box::pin(async move {
            let begun = pipeline.record_start::<T>(*self, place).await?;
            Ok(going(begun, pipeline))
        })
    }
}

/// Starts a call of the tool `T`.
fn going<T: Tool>(begun: Begun<T>, pipeline: &Arc<Pipeline>) -> Going
where
    T::Response: Message + Default,
{
    let (step, until) = (begun.work.step.number(), begun.until);
    let (task, abandon) = begun.spawn(pipeline);
    let guard = abandon.clone().drop_guard();
    let pipeline = Arc::clone(pipeline);
    let answer = async move {
        let response = until_its_time_is_up::<T>(task, until, guard).await?;
        answered::<T>(&pipeline, &response)
    };
    Going { step, abandon, answer: Box::pin(answer) }
}

/// What the tool `T` has answered.
fn answered<T: Tool>(pipeline: &Pipeline, response: &T::Response) -> Result<Answered, Error>
where
    T::Response: Message + Default,
{
    let data = pipeline.spec::<T>()?.write(response)?;
    let ran = match T::NAME == Run::NAME {
        true => Ran::of(&data),
        false => Ran::default(),
    };
    Ok(Answered { data, ran })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::catalog::Catalog;

    #[test]
    fn every_tool_is_here() {
        let catalog = Catalog::load().unwrap();
        let here: Vec<_> = TOOLS.keys().copied().collect();
        let mut described: Vec<_> = catalog.tools().collect();
        described.sort_unstable();
        assert_eq!(here, described);
    }
}
