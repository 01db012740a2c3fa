//! `jig.v1.WorkspaceService`: creates, lists, changes and deletes workspaces.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use prost::Message;
use tonic::{Request, Response, Status};

use super::handle;
use crate::{
    api::v1::{
        CreateWorkspaceRequest, CreateWorkspaceResponse, DeleteWorkspaceRequest,
        DeleteWorkspaceResponse, GetWorkspaceRequest, GetWorkspaceResponse, ListWorkspacesRequest,
        ListWorkspacesResponse, UpdateWorkspaceRequest, UpdateWorkspaceResponse, WorkspaceDetails,
        workspace_service_server::WorkspaceService,
    },
    daemon::{
        config::created_workspaces::FileBounds,
        error::{Error, Reason, Violation},
        pipeline::{
            Pipeline,
            access::principal::Principal,
            context::CallContext,
            workspaces::{OwnedWorkspace, created::NewWorkspace},
        },
        store::{unix_millis, workspaces::StoredWorkspace},
        task,
        tool::{Tool as _, WorkspaceContext, read_file::ReadFile},
        workspace::{CancelToken, FileUsage},
    },
};

/// Names of created workspaces: those of DNS labels, for use in host names and metadata.
const NAME_RULE: &str =
    "must have 1 to 63 lower-case letters, digits and hyphens, the first and last not a hyphen";

#[derive(Debug, Clone)]
pub(crate) struct WorkspaceServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl WorkspaceService for WorkspaceServiceHandler {
    async fn create_workspace(
        &self,
        request: Request<CreateWorkspaceRequest>,
    ) -> Result<Response<CreateWorkspaceResponse>, Status> {
        handle(request, async |context, request| {
            let principal = Arc::clone(&context.principal);
            let create = |service: Self, context, request| service.create(context, request);
            let created: CreateWorkspaceResponse =
                self.once("CreateWorkspace", context, request, create).await?;
            self.check_still_exists(&principal, &created)?;
            Ok(created)
        })
        .await
    }

    async fn get_workspace(
        &self,
        request: Request<GetWorkspaceRequest>,
    ) -> Result<Response<GetWorkspaceResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.0.catalog.check("jig.v1.GetWorkspaceRequest", request)?;
            let created = self.0.workspaces.find_created(&context.principal, &request.name);
            let found = match created {
                Some(owned) => {
                    measure(&owned.context).await?;
                    created_details(&owned)
                }
                None => details(&*self.named(&context, &request.name)?),
            };
            Ok(GetWorkspaceResponse { workspace: Some(found) })
        })
        .await
    }

    async fn list_workspaces(
        &self,
        request: Request<ListWorkspacesRequest>,
    ) -> Result<Response<ListWorkspacesResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.0.catalog.check("jig.v1.ListWorkspacesRequest", request)?;
            let page_size = request.page_size.unwrap_or_default().max(1) as usize;
            // The token is the last name of the page before.
            let mut workspaces: Vec<_> = self
                .visible(&context)
                .into_iter()
                .filter(|details| details.name > request.page_token)
                .filter(|details| {
                    request.labels.iter().all(|label| details.labels.get(label.0) == Some(label.1))
                })
                .take(page_size + 1)
                .collect();
            let has_more = workspaces.len() > page_size;
            workspaces.truncate(page_size);
            let last = workspaces.last().filter(|_| has_more);
            Ok(ListWorkspacesResponse {
                next_page_token: last.map(|last| last.name.clone()).unwrap_or_default(),
                workspaces,
            })
        })
        .await
    }

    async fn update_workspace(
        &self,
        request: Request<UpdateWorkspaceRequest>,
    ) -> Result<Response<UpdateWorkspaceResponse>, Status> {
        self.handle_once("UpdateWorkspace", request, |service, context, request| {
            service.update(context, request)
        })
        .await
    }

    async fn delete_workspace(
        &self,
        request: Request<DeleteWorkspaceRequest>,
    ) -> Result<Response<DeleteWorkspaceResponse>, Status> {
        self.handle_once("DeleteWorkspace", request, |service, context, request| {
            service.delete(context, request)
        })
        .await
    }
}

impl WorkspaceServiceHandler {
    /// Handles a request with side effects, to its end even if the client disconnects. A repeat with
    /// the same request id gets the first result.
    async fn handle_once<Q, A, F>(
        &self,
        method: &str,
        request: Request<Q>,
        work: impl FnOnce(Self, CallContext, Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        handle(request, |context, request| self.once(method, context, request, work)).await
    }

    async fn once<Q, A, F>(
        &self,
        method: &str,
        context: CallContext,
        request: Q,
        work: impl FnOnce(Self, CallContext, Q) -> F,
    ) -> Result<A, Error>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let method = format!("jig.v1.WorkspaceService/{method}");
        let call = self.0.identify_daemon_call(&context, &method, &request);
        let work = work(self.clone(), context, request);
        self.0.run_once_to_end(call, &method, work).await
    }

    /// Rejects the stored response of a creation whose workspace has been deleted since.
    fn check_still_exists(
        &self,
        principal: &Principal,
        response: &CreateWorkspaceResponse,
    ) -> Result<(), Error> {
        let created = response.workspace.clone().unwrap_or_default();
        let found = self.0.workspaces.find_created(principal, &created.name);
        // A later one of the same name was created by another request.
        let is_same = |owned: &OwnedWorkspace| {
            created.create_time == Some(unix_millis::to_time(owned.stored().created_ms).into())
        };
        if found.is_some_and(|owned| is_same(&owned)) {
            return Ok(());
        }
        let text = format!(
            "the workspace {:?} that this request id created no longer exists: create another one with a new request id",
            created.name
        );
        let error = Error::new(Reason::UnknownWorkspace, text);
        Err(error.with_metadata("workspace", created.name))
    }

    async fn create(
        self,
        context: CallContext,
        request: CreateWorkspaceRequest,
    ) -> Result<CreateWorkspaceResponse, Error> {
        let request = self.0.catalog.check("jig.v1.CreateWorkspaceRequest", request)?;
        let CreateWorkspaceRequest { name, ttl_sec, idle_timeout_sec, clone_of, .. } = &request;
        let params = WorkspaceParams { name, ttl_sec, idle_timeout_sec, clone_of };
        params.note(&context, request.labels.iter());
        self.0.require_creator()?;
        context.principal.require_create_workspaces()?;
        if !request.name.is_empty() && !is_valid_name(&request.name) {
            return Err(Error::invalid(vec![Violation::new("name", NAME_RULE)]));
        }
        let clone_of = match request.clone_of.filter(|name| !name.is_empty()) {
            Some(name) => Some(self.source(&context, &name)?),
            None => None,
        };
        self.0.shutdown.check_accepting()?;

        let new = NewWorkspace {
            name: Some(request.name).filter(|name| !name.is_empty()),
            owner: context.principal.name().to_owned(),
            labels: request.labels.into_iter().collect(),
            clone_of,
            bounds: FileBounds { max_bytes: request.max_bytes, max_files: request.max_files },
            ttl: request.ttl_sec.map(seconds),
            idle_timeout: request.idle_timeout_sec.map(seconds),
        };
        let created = self.0.create_workspace(new).await?;
        measure(&created.context).await?;
        note_workspace(&context, &created.context);
        Ok(CreateWorkspaceResponse { workspace: Some(created_details(&created)) })
    }

    /// The workspace whose files a new one gets. Its caller must be allowed to read them.
    fn source(&self, context: &CallContext, name: &str) -> Result<Arc<WorkspaceContext>, Error> {
        let source = self.named(context, name)?;
        context.principal.require_tool(ReadFile::NAME)?;
        Ok(source)
    }

    async fn update(
        self,
        context: CallContext,
        request: UpdateWorkspaceRequest,
    ) -> Result<UpdateWorkspaceResponse, Error> {
        let request = self.0.catalog.check("jig.v1.UpdateWorkspaceRequest", request)?;
        let UpdateWorkspaceRequest { name, ttl_sec, idle_timeout_sec, .. } = &request;
        let params = WorkspaceParams { name, ttl_sec, idle_timeout_sec, clone_of: &None };
        params.note(&context, request.labels.iter().flat_map(|labels| &labels.labels));
        let workspace = self.created(&context, &request.name)?;
        note_workspace(&context, &workspace.context);
        let labels: Option<BTreeMap<_, _>> =
            request.labels.map(|labels| labels.labels.into_iter().collect());
        let changed = self.0.update_workspace(
            &workspace,
            request.ttl_sec.map(seconds),
            request.idle_timeout_sec.map(seconds),
            labels,
        );
        changed.await?;
        Ok(UpdateWorkspaceResponse { workspace: Some(created_details(&workspace)) })
    }

    async fn delete(
        self,
        context: CallContext,
        request: DeleteWorkspaceRequest,
    ) -> Result<DeleteWorkspaceResponse, Error> {
        let request = self.0.catalog.check("jig.v1.DeleteWorkspaceRequest", request)?;
        context.note_params([("name", Some(&request.name))]);
        if self.0.workspace_creator.is_some()
            && self.0.delete_unserved_workspace(&context.principal, &request.name).await?
        {
            return Ok(DeleteWorkspaceResponse {});
        }
        let workspace = self.created(&context, &request.name)?;
        note_workspace(&context, &workspace.context);
        self.0.delete_workspace(&workspace).await?;
        Ok(DeleteWorkspaceResponse {})
    }

    /// The created workspace of this name, if the caller sees it.
    fn created(&self, context: &CallContext, name: &str) -> Result<Arc<OwnedWorkspace>, Error> {
        let found = self.0.workspaces.find_created(&context.principal, name);
        found.ok_or_else(|| {
            match self.named(context, name) {
                Ok(_) => {
                    let text = format!(
                        "the workspace {name:?} is one of the configuration: only the operator can change or remove it"
                    );
                    Error::new(Reason::Forbidden, text).with_metadata("workspace", name)
                }
                Err(error) => error,
            }
        })
    }

    /// The workspace of this name, if the caller sees it.
    fn named(&self, context: &CallContext, name: &str) -> Result<Arc<WorkspaceContext>, Error> {
        let of = CallContext {
            workspace: Some(name.to_owned()),
            found_workspace: Arc::default(),
            ..context.clone()
        };
        self.0.resolve_workspace(&of)
    }

    /// The workspaces of the caller in the order of their names.
    fn visible(&self, context: &CallContext) -> Vec<WorkspaceDetails> {
        let principal = &context.principal;
        let configured = self.0.workspaces.visible_configured(principal);
        let created = self.0.workspaces.created_visible_to(principal);
        let created = created.iter().map(|owned| created_details(owned));
        let mut all: Vec<_> = configured.map(|context| details(context)).chain(created).collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

/// What the audit log reports of a request.
struct WorkspaceParams<'a> {
    name: &'a str,
    ttl_sec: &'a Option<u32>,
    idle_timeout_sec: &'a Option<u32>,
    clone_of: &'a Option<String>,
}

impl WorkspaceParams<'_> {
    fn note<'a>(
        self,
        context: &CallContext,
        labels: impl Iterator<Item = (&'a String, &'a String)>,
    ) {
        let number = |number: &Option<u32>| number.map(|number| number.to_string());
        let labels: Vec<_> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        context.note_params([
            ("name", Some(self.name).filter(|name| !name.is_empty())),
            ("clone_of", self.clone_of.as_deref()),
            ("ttl_sec", number(self.ttl_sec).as_deref()),
            ("idle_timeout_sec", number(self.idle_timeout_sec).as_deref()),
            ("labels", Some(labels.join(",")).filter(|labels| !labels.is_empty()).as_deref()),
        ]);
    }
}

/// Notes the workspace that the RPC is about, for the logs.
fn note_workspace(context: &CallContext, workspace: &WorkspaceContext) {
    let name = workspace.workspace.name().to_owned();
    context.access_log_entry.update(|fields| fields.workspace = Some(name));
}

fn details(context: &WorkspaceContext) -> WorkspaceDetails {
    WorkspaceDetails {
        name: context.workspace.name().to_owned(),
        mount_path: context.workspace.mount_path().display().to_string(),
        ..WorkspaceDetails::default()
    }
}

fn created_details(workspace: &OwnedWorkspace) -> WorkspaceDetails {
    let StoredWorkspace {
        owner,
        labels,
        created_ms,
        last_used_ms,
        expires_ms,
        idle_timeout_ms,
        ..
    } = workspace.stored();
    let time = |millis| unix_millis::to_time(millis).into();
    let quota = workspace.context.workspace.file_quota();
    let limits = quota.map(|quota| quota.limits()).unwrap_or(FileUsage::MAX);
    let usage = quota.and_then(|quota| quota.known_usage());
    // The file system reports what a project uses only of what has a bound.
    let is_watched = quota.is_some_and(|quota| quota.is_watched());
    let is_known = |bound| is_watched || bound < u64::MAX;
    WorkspaceDetails {
        on_demand: true,
        owner,
        labels: labels.into_iter().collect(),
        create_time: Some(time(created_ms)),
        expire_time: expires_ms.map(time),
        last_used_time: Some(time(last_used_ms)),
        idle_timeout_sec: idle_timeout_ms
            .map(|millis| u32::try_from(millis / 1000).unwrap_or(u32::MAX)),
        max_bytes: Some(limits.bytes).filter(|bytes| *bytes < u64::MAX),
        max_files: Some(limits.files).filter(|files| *files < u64::MAX),
        used_bytes: usage.map(|usage| usage.bytes).filter(|_| is_known(limits.bytes)),
        used_files: usage.map(|usage| usage.files).filter(|_| is_known(limits.files)),
        quota: quota.map(|quota| quota.enforcement().name().to_owned()).unwrap_or_default(),
        ..details(&workspace.context)
    }
}

/// Measures a workspace with bounds, unless nothing has changed since the last time.
async fn measure(context: &WorkspaceContext) -> Result<(), Error> {
    let Some(quota) = context.workspace.file_quota() else {
        return Ok(());
    };
    let quota = Arc::clone(quota);
    let measured = task::spawn_blocking(move || quota.current_usage(&CancelToken::new()));
    measured.await.map_err(Error::internal)?.map(drop)
}

fn is_valid_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}

#[cfg(test)]
mod tests {
    use super::is_valid_name;

    #[test]
    fn names_are_dns_labels() {
        for name in ["a", "a-1", "1", &"n".repeat(63)] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a.b", "a/b", "..", "ä", "a b", "a\n", &"n".repeat(64)] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
