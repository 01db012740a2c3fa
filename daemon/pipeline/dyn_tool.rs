//! Tools by name, with JSON parameters: type-erased calls for `Invoke`, batches and jobs.

mod custom;
mod interface;
mod typed;

use std::{collections::BTreeMap, sync::LazyLock};

use prost::Message;

pub(super) use self::interface::{DynTool, DynValidatedCall, JsonToolOutput, RunningCall};
use self::{interface::JSON_COST_PER_BYTE, typed::TypedTool};
use super::{Pipeline, access::principal::Principal};
use crate::daemon::{
    catalog::{Catalog, custom::CustomTool, suggest},
    error::{Error, Reason},
    tool::{
        Tool, apply_patch::ApplyPatch, await_job::AwaitJob, create_directory::CreateDirectory,
        delete_path::DeletePath, edit_file::EditFile, edit_notebook::EditNotebook,
        fetch_url::FetchUrl, last_command::LastCommand, list_directory::ListDirectory,
        list_files::ListFiles, move_path::MovePath, read_file::ReadFile,
        read_notebook::ReadNotebook, run::RunCommand, search::SearchFiles, stat_path::StatPath,
        write_file::WriteFile,
    },
};

/// The canonical tools, by name.
type ToolsByName = BTreeMap<&'static str, Box<dyn DynTool>>;

static TOOLS: LazyLock<ToolsByName> = LazyLock::new(|| {
    let mut tools = ToolsByName::new();
    register::<ApplyPatch>(&mut tools);
    register::<AwaitJob>(&mut tools);
    register::<CreateDirectory>(&mut tools);
    register::<DeletePath>(&mut tools);
    register::<EditFile>(&mut tools);
    register::<EditNotebook>(&mut tools);
    register::<FetchUrl>(&mut tools);
    register::<LastCommand>(&mut tools);
    register::<ListDirectory>(&mut tools);
    register::<ListFiles>(&mut tools);
    register::<MovePath>(&mut tools);
    register::<ReadFile>(&mut tools);
    register::<ReadNotebook>(&mut tools);
    register::<RunCommand>(&mut tools);
    register::<SearchFiles>(&mut tools);
    register::<StatPath>(&mut tools);
    register::<WriteFile>(&mut tools);
    tools
});

fn register<T: Tool>(tools: &mut ToolsByName)
where
    T::Response: Message + Default,
{
    tools.insert(T::NAME, Box::new(TypedTool::<T>::new()));
}

/// Finds a tool by name. The error for an unknown name lists the tools that `principal` may call.
pub(super) fn find(
    name: &str,
    pipeline: &Pipeline,
    principal: &Principal,
) -> Result<&'static dyn DynTool, Error> {
    if let Some(tool) = pipeline.catalog.custom_tool(name) {
        return Ok(tool);
    }

    TOOLS.get(name).map(Box::as_ref).ok_or_else(|| {
        let is_available = |tool: &&str| {
            principal.require_tool(tool).is_ok()
                && pipeline.require_enabled_tool(tool, None).is_ok()
        };
        let known: Vec<_> = tool_names(&pipeline.catalog).filter(is_available).collect();
        let text = suggest::unknown_tool_message(name, &known);
        Error::new(Reason::UnknownTool, text).with_metadata("tool", name)
    })
}

/// Returns the names of all tools: those of the contract, then those of the configuration.
pub(super) fn tool_names(catalog: &Catalog) -> impl Iterator<Item = &'static str> {
    let custom = catalog.custom_tools().map(CustomTool::name);
    TOOLS.keys().copied().chain(custom)
}

/// Returns the cost of validating `bytes` of JSON, in bytes of plain text.
pub(super) fn json_validation_cost(bytes: usize) -> usize {
    bytes.saturating_mul(JSON_COST_PER_BYTE)
}

/// Returns the cost of validating `bytes` of parameters for a tool, in bytes of plain text.
pub(super) fn validation_cost(name: &str, catalog: &Catalog, bytes: usize) -> usize {
    let custom = catalog.custom_tool(name).map(DynTool::cost_per_byte);
    let cost = custom.or_else(|| TOOLS.get(name).map(|tool| tool.cost_per_byte()));
    bytes.saturating_mul(cost.unwrap_or(JSON_COST_PER_BYTE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::catalog::Catalog;

    #[test]
    fn every_tool_is_registered() {
        let catalog = Catalog::load().unwrap();
        let registered: Vec<_> = TOOLS.keys().copied().collect();
        let mut described: Vec<_> = catalog.tool_names().collect();
        described.sort_unstable();
        assert_eq!(registered, described);
    }
}
