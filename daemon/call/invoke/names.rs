//! What the name of a tool stands for, in the vocabulary that a caller speaks.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Doing;
use crate::daemon::{
    call::{
        Pipeline, access::principal::Principal, any_tool, context::Incoming, envelope,
        policy::judged::Spoken, subject::KEPT,
    },
    catalog::Text,
    dialect::{Dialect, DialectTool, Params, Said},
    error::Error,
    tool::{Tool as _, await_job::AwaitJob},
};

impl Pipeline {
    /// The vocabulary that has a tool of this name: those of the configuration are the same in all of them, and so
    /// are those that it borrows from the contract, and the tool that waits for jobs.
    pub(in crate::daemon::call) fn vocabulary(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        dialect.filter(|dialect| {
            let is_own = dialect.tools().iter().any(|own| own.name == tool);
            let is_borrowed = tool == AwaitJob::NAME || dialect.borrowed.contains(&tool);
            self.catalog.custom(tool).is_none() && (is_own || !is_borrowed)
        })
    }

    /// The vocabulary in which a call of the tool of this name is answered. Tools of the configuration are of no
    /// vocabulary, but some say how these answer.
    pub(in crate::daemon::call) fn answering(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        let is_custom = self.catalog.custom(tool).is_some();
        let of_custom = dialect.filter(|dialect| is_custom && dialect.has_custom());
        self.vocabulary(dialect, tool).or(of_custom)
    }

    /// Drops the parameters that a tool of the configuration does not take, where the vocabulary in which it is
    /// answered ignores such.
    pub(in crate::daemon::call) fn drop_unknown(
        &self,
        dialect: Option<&Dialect>,
        tool: &str,
        params: &mut Map<String, Value>,
    ) {
        if let Some(custom) = self.catalog.custom(tool)
            && dialect.is_some_and(Dialect::ignores_unknown)
        {
            params.retain(|name, _| custom.takes(name));
        }
    }

    /// What a call is made as, with its parameters if they could be read.
    pub(super) fn said(
        &self,
        incoming: &Incoming,
        tool: &str,
        params: Option<&Map<String, Value>>,
    ) -> Result<Said, Error> {
        let none = Map::new();
        let mount_path = self.mount_path(incoming)?;
        Ok(Said::new(tool, params.unwrap_or(&none), &mount_path))
    }

    /// What a call of a dialect is made as.
    pub(in crate::daemon::call) fn spoken(
        &self,
        incoming: &Incoming,
        dialect: &'static Dialect,
        tool: &DialectTool,
        params: &Map<String, Value>,
    ) -> Result<Arc<Spoken>, Error> {
        let workspace = &self.scene(incoming)?.workspace;
        let name = workspace.name();
        let matters = || self.policy.snapshot().looks_at_said(tool.name, name);
        let plain = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
        let mut texts = Vec::new();
        if envelope::size_of_fields(params) <= KEPT || matters() {
            // What cannot be read is not made a call of.
            let read = dialect.read(tool, params.clone());
            let read = read.map_or_else(|_| params.clone(), Params::into_fields);
            texts = Text::of_json(params, &read, plain);
        }
        Ok(Arc::new(Spoken {
            dialect,
            tool: tool.name,
            texts,
            shown: tool.shown(params),
            given: dialect.given(tool.name, params),
        }))
    }

    /// Where commands find the workspace of a call.
    pub(in crate::daemon::call) fn mount_path(&self, incoming: &Incoming) -> Result<String, Error> {
        let scene = self.scene(incoming)?;
        Ok(scene.workspace.mount_path().display().to_string())
    }

    /// What does what a call of this name is to do, if `principal` may make it.
    pub(in crate::daemon::call) fn doing(
        &self,
        principal: &Principal,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Result<Doing, Error> {
        let Some(dialect) = dialect else {
            let tool = any_tool::find(tool, self, principal)?;
            tool.is_open(self, principal, None)?;
            return Ok(Doing::Canonical(tool));
        };
        let tool = dialect.tool(tool, |tool| self.is_open(principal, tool).is_ok())?;
        self.is_open(principal, tool)?;
        Ok(Doing::Dialect(dialect, tool))
    }

    /// Refuses a tool of a dialect of which `principal` may not call all that it is made of.
    pub(in crate::daemon::call) fn is_open(
        &self,
        principal: &Principal,
        tool: &DialectTool,
    ) -> Result<(), Error> {
        for name in tool.uses {
            principal.may_call(name)?;
            any_tool::find(name, self, principal)?.is_open(self, principal, Some(tool.name))?;
        }
        Ok(())
    }
}
