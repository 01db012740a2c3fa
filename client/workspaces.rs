//! RPCs of `WorkspaceService`: workspaces that callers create.

use super::{call::Client, error::CallError, methods::methods};
use crate::api::v1::{
    CreateWorkspaceRequest, CreateWorkspaceResponse, DeleteWorkspaceRequest,
    DeleteWorkspaceResponse, GetWorkspaceRequest, GetWorkspaceResponse, ListWorkspacesRequest,
    ListWorkspacesResponse, UpdateWorkspaceRequest, UpdateWorkspaceResponse,
};

methods! { workspaces {
    /// Creates a workspace.
    create_workspace(CreateWorkspaceRequest) -> CreateWorkspaceResponse;
    /// Returns one workspace.
    get_workspace(GetWorkspaceRequest) -> GetWorkspaceResponse;
    /// Lists one page of workspaces.
    list_workspaces(ListWorkspacesRequest) -> ListWorkspacesResponse;
    /// Changes when a created workspace expires, or its labels.
    update_workspace(UpdateWorkspaceRequest) -> UpdateWorkspaceResponse;
    /// Deletes a created workspace.
    delete_workspace(DeleteWorkspaceRequest) -> DeleteWorkspaceResponse;
} }
