//! Checking calls: what can be seen of them before anything is done.

use std::{collections::HashSet, sync::Arc, time::Instant};

use prost::Message as _;

use super::{
    Checked, Pipeline,
    admission::{Applicant, Deadline},
    admit::leave_in_span,
    context::Incoming,
    repeatable::Repeatable,
    subject::{KEPT, Said, Subject, told},
};
use crate::daemon::{
    catalog::{self, Told, ToolSpec},
    error::{Error, Violation},
    task,
    tool::{Scene, Tool, run::Run},
};

/// Requests that are looked at at once, of plain text; what takes longer, in its turn, on a thread that may
/// block.
const LARGE: usize = 64 << 10;

impl Pipeline {
    /// What the descriptors say about the tool `T`.
    pub(super) fn spec<T: Tool>(&self) -> Result<&ToolSpec, Error> {
        let spec = self.catalog.tool(T::NAME);
        spec.ok_or_else(|| Error::internal(format!("no tool {}", T::NAME)))
    }

    /// Validates a call of the tool `T`, and makes it one that can be repeated, as `method`, where that is
    /// asked for and it has a request id.
    pub(super) async fn look_at<T: Tool>(
        self: &Arc<Self>,
        incoming: &Incoming,
        request: T::Request,
        method: Option<&'static str>,
    ) -> Result<(Option<Repeatable>, Checked<T>), Error> {
        let bytes = request.encoded_len();
        if bytes.saturating_mul(T::COST) <= LARGE {
            return self.inspect::<T>(incoming, request, method);
        }
        let pipeline = Arc::clone(self);
        let looks = move |incoming: &Incoming| pipeline.inspect::<T>(incoming, request, method);
        self.look_in_turn(incoming, bytes, looks).await
    }

    /// Looks at what a call says, which takes so many bytes of memory, and costs as much as so many of plain
    /// text do: at once, or in its turn and on a thread that may block, where there is much to look at.
    pub(crate) async fn look_into<R: Send + 'static>(
        &self,
        incoming: &Incoming,
        (bytes, cost): (usize, usize),
        looks: impl FnOnce(&Incoming) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        match cost <= LARGE {
            true => looks(incoming),
            false => self.look_in_turn(incoming, bytes, looks).await,
        }
    }

    async fn look_in_turn<R: Send + 'static>(
        &self,
        incoming: &Incoming,
        bytes: usize,
        looks: impl FnOnce(&Incoming) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let applicant = Applicant {
            deadline: Deadline::At(incoming.deadline),
            bytes,
            ..Applicant::from(&*incoming.principal)
        };
        let since = Instant::now();
        let place = self.admission.look(applicant, &self.drain).await;
        let place = place.inspect_err(|error| leave_in_span(incoming, error, since))?;
        let incoming = incoming.clone();
        let looked = task::blocking(move || {
            let looked = looks(&incoming);
            drop(place);
            looked
        });
        looked.await.map_err(Error::internal)?
    }

    fn inspect<T: Tool>(
        &self,
        incoming: &Incoming,
        request: T::Request,
        method: Option<&str>,
    ) -> Result<(Option<Repeatable>, Checked<T>), Error> {
        let repeatable = match method {
            Some(method) => self.repeatable(incoming, method, &request)?,
            None => None,
        };
        Ok((repeatable, self.check::<T>(incoming, request)?))
    }

    /// Validates a call of the tool `T`.
    pub(super) fn check<T: Tool>(
        &self,
        incoming: &Incoming,
        request: T::Request,
    ) -> Result<Checked<T>, Error> {
        self.check_as::<T>(incoming, request, None)
    }

    /// As [`Self::check`], for what it is called as: `instead` of its own parameters, those who decide are told of
    /// others, and others are recorded.
    pub(super) fn check_as<T: Tool>(
        &self,
        incoming: &Incoming,
        request: T::Request,
        instead: Option<(Told, serde_json::Value)>,
    ) -> Result<Checked<T>, Error> {
        let bytes = request.encoded_len();
        let scene = self.scene(incoming)?.clone();
        let tool = incoming.tool(T::NAME);
        incoming.principal.may_call(tool)?;
        let spec = self.spec::<T>()?;
        let of_alias = incoming.alias.map(|alias| alias.risk);
        let risk = of_alias.unwrap_or(spec.options.risk());
        let workspace = scene.workspace.name().to_owned();
        incoming.facts.note(|facts| {
            facts.tool = Some(tool.to_owned());
            facts.workspace = Some(workspace.clone());
        });
        let snapshot = self.policy.snapshot();
        let said = incoming.said();
        let name = said.as_ref().map(|said| said.tool);
        let keeps = instead.is_none() && snapshot.looks_at(tool, name, risk, &workspace);
        let mut checked = match T::MESSAGE {
            None => spec.check(request, keeps)?,
            Some(message) => self.catalog.look_at(message, request, keeps)?,
        };
        let given = checked.given.take();
        let as_given = Said { message: T::MESSAGE, encoded: std::mem::take(&mut checked.encoded) };
        let (params, shown) = validate::<T>(checked, &scene)?;
        let of_run = scene.settings.timeout.filter(|_| tool == Run::NAME);
        let subject = Subject::new(tool, risk, workspace, snapshot).said_as(said);
        let (instead, shown) = match instead {
            Some((told, shown)) => (Some(told), shown),
            None => (None, shown),
        };
        let subject = match (instead, given) {
            (Some(told), _) => subject.with(told, Vec::new(), 0),
            (None, Some(given)) => {
                let files = T::files(&params, &scene);
                let told = told(&given, &scene, T::reading(&params, &scene));
                subject.with(told, files, given.size())
            }
            (None, None) => {
                Subject { said: (bytes <= KEPT).then(|| Arc::new(as_given)), ..subject }
            }
        };
        let subject = Subject { cwd: T::cwd(&params).cloned(), ..subject };
        Ok(Checked {
            scene,
            params,
            shown,
            subject,
            default_timeout: incoming.limit.or(of_run).unwrap_or_else(|| spec.default_timeout()),
            bytes,
        })
    }
}

/// Checks a request, whose fields were looked at one by one, with its tool; answers its parameters,
/// and what a record shows of them.
fn validate<T: Tool>(
    checked: catalog::Checked<T::Request>,
    scene: &Scene,
) -> Result<(T::Params, serde_json::Value), Error> {
    let catalog::Checked { request, params: shown, mut violations, given: _, encoded: _ } = checked;
    let params = T::check(request, scene, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(each_field_once(violations)));
    }
    let params =
        params?.ok_or_else(|| Error::internal("a request was refused without a reason"))?;
    Ok((params, shown))
}

fn each_field_once(violations: Vec<Violation>) -> Vec<Violation> {
    let mut seen = HashSet::new();
    violations.into_iter().filter(|violation| seen.insert(violation.field.clone())).collect()
}
