//! `jig workspace`: creates and deletes workspaces while the daemon runs.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use jig::{
    api::v1::{
        CreateWorkspaceRequest, DeleteWorkspaceRequest, ListWorkspacesRequest,
        UpdateWorkspaceRequest, WorkspaceDetails, WorkspaceLabels,
    },
    client::Client,
};
use serde_json::{Value, json};

use super::{columns::align_columns, command_line::parse_size, report_and_exit, try_each};
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, output};

/// Create, list, change and delete workspaces.
///
/// The operator allows it with `workspaces_on_demand.directory`. A new workspace is used with
/// `--workspace NAME`.
#[derive(Debug, Args)]
pub(crate) struct WorkspaceArgs {
    #[command(subcommand)]
    action: WorkspaceCommand,
}

#[derive(Debug, Subcommand)]
enum WorkspaceCommand {
    Create(CreateArgs),
    List(ListArgs),
    Update(UpdateArgs),
    /// Delete workspaces with their files, after their last process has ended.
    Rm {
        /// Names of the workspaces.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// Create a workspace, and print its name.
#[derive(Debug, Args)]
struct CreateArgs {
    /// Name: 1 to 63 lower-case letters, digits and hyphens. Default: the daemon chooses one.
    #[arg(default_value = "", hide_default_value = true)]
    name: String,
    /// Workspace whose files are copied. Default: the new one is empty.
    #[arg(long, value_name = "NAME")]
    clone: Option<String>,
    /// Label, for `list`. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Disk space of its files, in bytes, or with K, M or G. Default: what the operator has set.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Number of its files and directories. Default: what the operator has set.
    #[arg(long, value_name = "NUMBER")]
    max_files: Option<u64>,
    /// Seconds after which it is deleted. Default and maximum: what the operator has set.
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u32).range(1..))]
    ttl: Option<u32>,
    /// Seconds without a call after which it is deleted. Default and maximum: what the operator has
    /// set.
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u32).range(1..))]
    idle_timeout: Option<u32>,
}

/// List workspaces, those of the configuration included.
#[derive(Debug, Args)]
#[command(visible_alias = "ls")]
struct ListArgs {
    /// Label that a workspace must have. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
}

/// Change when a workspace is deleted, or its labels.
#[derive(Debug, Args)]
struct UpdateArgs {
    /// Name of the workspace.
    name: String,
    /// Seconds from now after which it is deleted. 0: never, if the operator allows that.
    #[arg(long, value_name = "SEC")]
    ttl: Option<u32>,
    /// Seconds without a call after which it is deleted. 0: never, if the operator allows that.
    #[arg(long, value_name = "SEC")]
    idle_timeout: Option<u32>,
    /// Label in place of all former ones. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn workspace(global: &GlobalArgs, args: WorkspaceArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| match args.action {
        WorkspaceCommand::Create(args) => create(address, global, args),
        WorkspaceCommand::List(args) => list(address, global, args),
        WorkspaceCommand::Update(args) => update(address, global, args),
        WorkspaceCommand::Rm { names } => remove(address, global, names),
    });
    report_and_exit(result, global.json)
}

fn create(address: &str, global: &GlobalArgs, args: CreateArgs) -> Result<(), CliError> {
    let request = CreateWorkspaceRequest {
        name: args.name,
        labels: args.label.into_iter().collect(),
        clone_of: args.clone,
        ttl_sec: args.ttl,
        idle_timeout_sec: args.idle_timeout,
        max_bytes: args.max_bytes,
        max_files: args.max_files,
    };
    let response = connection::call_address(address, global, async |client: Client| {
        Ok(client.create_workspace(request).await?)
    })?;
    let created = response.workspace.unwrap_or_default();
    if global.json {
        return output::write_json(&workspace_json(&created));
    }
    output::write_stdout(format!("{}\n", escape::text(&created.name)).as_bytes())
}

fn list(address: &str, global: &GlobalArgs, args: ListArgs) -> Result<(), CliError> {
    let labels: std::collections::BTreeMap<_, _> = args.label.into_iter().collect();
    let listed = connection::call_address(address, global, async |client: Client| {
        let mut workspaces = Vec::new();
        let mut page_token = String::new();
        loop {
            let request =
                ListWorkspacesRequest { labels: labels.clone(), page_token, page_size: None };
            let page = client.list_workspaces(request).await?;
            workspaces.extend(page.workspaces);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(workspaces);
            }
        }
    })?;

    if global.json {
        let workspaces: Vec<Value> = listed.iter().map(workspace_json).collect();
        return output::write_json(&json!({ "workspaces": workspaces }));
    }
    output::write_stdout(workspaces_table(&listed).as_bytes())
}

fn update(address: &str, global: &GlobalArgs, args: UpdateArgs) -> Result<(), CliError> {
    if args.ttl.is_none() && args.idle_timeout.is_none() && args.label.is_empty() {
        let text = "nothing to change: use --ttl, --idle-timeout or --label";
        return Err(CliError::Usage(text.to_owned()));
    }
    let request = UpdateWorkspaceRequest {
        name: args.name,
        ttl_sec: args.ttl,
        idle_timeout_sec: args.idle_timeout,
        labels: (!args.label.is_empty())
            .then(|| WorkspaceLabels { labels: args.label.into_iter().collect() }),
    };
    let response = connection::call_address(address, global, async |client: Client| {
        Ok(client.update_workspace(request).await?)
    })?;
    let updated = response.workspace.unwrap_or_default();
    if global.json {
        return output::write_json(&workspace_json(&updated));
    }
    output::write_stdout(workspaces_table(&[updated]).as_bytes())
}

fn remove(address: &str, global: &GlobalArgs, names: Vec<String>) -> Result<(), CliError> {
    if names.len() > 1 {
        global.reject_request_id("each workspace is a call of its own")?;
    }
    connection::call_address(address, global, async |client: Client| {
        try_each(names, global.json, async |name| {
            Ok(client.delete_workspace(DeleteWorkspaceRequest { name }).await.map(drop)?)
        })
        .await
    })
}

/// Formats a header and a line per workspace.
fn workspaces_table(workspaces: &[WorkspaceDetails]) -> String {
    let mut rows = vec![
        ["NAME", "OWNER", "CREATED", "ENDS", "BYTES", "FILES", "LABELS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(workspaces.iter().map(|workspace| {
        let time = |time: Option<prost_types::Timestamp>, none: &str| {
            time.map_or_else(|| none.to_owned(), |time| time.to_string())
        };
        let mut labels: Vec<_> =
            workspace.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.sort_unstable();
        let row = [
            workspace.name.clone(),
            if workspace.on_demand { workspace.owner.clone() } else { "(operator)".to_owned() },
            time(workspace.create_time, "-"),
            time(workspace.expire_time, "never"),
            usage_text(workspace.used_bytes, workspace.max_bytes),
            usage_text(workspace.used_files, workspace.max_files),
            labels.join(","),
        ];
        row.map(|cell| escape::text(&cell).replace(['\n', '\t'], " ")).to_vec()
    }));
    align_columns(&rows)
}

/// The usage and its bound: `4096/1048576`.
fn usage_text(used: Option<u64>, limit: Option<u64>) -> String {
    let text = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |it| it.to_string());
    limit.map_or_else(|| "-".to_owned(), |_| format!("{}/{}", text(used), text(limit)))
}

fn workspace_json(workspace: &WorkspaceDetails) -> Value {
    let time = |stamp: Option<prost_types::Timestamp>| stamp.map(|stamp| stamp.to_string());
    json!({
        "name": workspace.name,
        "mount_path": workspace.mount_path,
        "on_demand": workspace.on_demand,
        "owner": workspace.owner,
        "labels": workspace.labels,
        "create_time": time(workspace.create_time),
        "expire_time": time(workspace.expire_time),
        "last_used_time": time(workspace.last_used_time),
        "idle_timeout_sec": workspace.idle_timeout_sec,
        "max_bytes": workspace.max_bytes,
        "max_files": workspace.max_files,
        "used_bytes": workspace.used_bytes,
        "used_files": workspace.used_files,
        "quota": workspace.quota,
    })
}
