//! What keys and lists of tools leave of calls that are no tool's, but are about what a tool has done or does.

use std::time::SystemTime;

use super::{
    Pipeline,
    context::Incoming,
    jobs::{Found, not_found},
    policy::{asked::Asked, decision::By},
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::custom::CustomTool,
        config::policy::Action,
        dialect::{self, Dialect},
        error::{Error, Reason},
        store::jobs::named,
        tool::{Tool as _, read_file::ReadFile, run::Run},
    },
};

impl Pipeline {
    /// Refuses who may not run commands: those that run are as little for him.
    pub(crate) fn may_see_commands(&self, incoming: &Incoming) -> Result<(), Error> {
        incoming.principal.may_call(Run::NAME)
    }

    /// Refuses to give a command more to do where commands were switched off since it was started.
    pub(crate) fn may_feed_commands(&self, incoming: &Incoming) -> Result<(), Error> {
        self.may_see_commands(incoming)?;
        let asked = Asked {
            tool: Run::NAME,
            risk: Risk::Dangerous,
            workspace: self.scene(incoming)?.workspace.name(),
            texts: &[],
            said: None,
        };
        let verdict = self.policy.snapshot().decide(asked, SystemTime::now());
        if verdict.action != Action::Deny || !matches!(verdict.by, By::Lists) {
            return Ok(());
        }
        let text = "the operator has switched run off, and what was started before gets nothing more to read: SendSignal ends it";
        Err(Error::new(Reason::ToolDisabled, text).with("tool", Run::NAME))
    }

    /// The tool that reads artifacts, as the caller knows it, where the caller may call it.
    pub(super) fn reader(&self, incoming: &Incoming) -> Option<&'static str> {
        let by_name = incoming.by_name.as_ref();
        self.reader_in(incoming, by_name.and_then(|by_name| by_name.dialect))
    }

    /// The tool of a vocabulary that reads artifacts, where the caller may call it.
    pub(crate) fn reader_in(
        &self,
        incoming: &Incoming,
        dialect: Option<&Dialect>,
    ) -> Option<&'static str> {
        let reader = dialect.map_or(ReadFile::NAME, |dialect| dialect.reader);
        let is_open = incoming.principal.may_call(ReadFile::NAME).is_ok()
            && self.is_switched_on(ReadFile::NAME, Some(reader)).is_ok();
        is_open.then_some(reader)
    }

    /// Refuses a tool that the caller's key is not for, or one of a dialect that calls such.
    fn may_call_as(&self, incoming: &Incoming, dialect: &str, tool: &str) -> Result<(), Error> {
        let own = match dialect {
            "" => None,
            dialect => dialect::find(dialect)?.own(tool),
        };
        // Without one, it is of the contract or of the configuration.
        let Some(tool) = own else {
            return incoming.principal.may_call(tool);
        };
        let mut uses = tool.uses.iter();
        uses.try_for_each(|name| incoming.principal.may_call(name))
    }

    /// The tools whose jobs a caller sees; without, all.
    pub(crate) fn tools_of_jobs(&self, incoming: &Incoming) -> Option<Vec<String>> {
        let principal = &incoming.principal;
        let mut tools: Vec<_> = principal.tools()?.collect();
        let of_configuration = self.catalog.customs().map(CustomTool::name);
        let custom: Vec<_> =
            of_configuration.filter(|tool| principal.may_call(tool).is_ok()).collect();
        for dialect in dialect::all() {
            let seen = dialect.tools().iter().filter(|tool| {
                let mut uses = tool.uses.iter();
                uses.all(|name| principal.may_call(name).is_ok())
            });
            tools.extend(seen.map(|tool| named(dialect.name, tool.name)));
            if dialect.has_custom() {
                tools.extend(custom.iter().map(|tool| named(dialect.name, tool)));
            }
        }
        Some(tools)
    }

    /// Finds a job. One of a tool that the caller's key is not for is not there.
    pub(crate) async fn find_job(&self, incoming: &Incoming, id: &str) -> Result<Found, Error> {
        let workspace = self.scene(incoming)?.workspace.name();
        let found = self.jobs.find(workspace, id).await?;
        let job = found.job();
        match self.may_call_as(incoming, &job.dialect, &job.tool) {
            Ok(()) => Ok(found),
            Err(_) => Err(not_found(workspace, id)),
        }
    }
}
