//! Paths and queries of REST routes. A part that does not fit is a [`RestError`].

use axum::extract::{FromRequestParts, Path, Query};
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Map;

use super::rest_error::RestError;

/// The parameters in the path.
#[derive(Debug)]
pub(super) struct RestPath<T>(pub(super) T);

/// The query. Its type must deny unknown fields.
#[derive(Debug)]
pub(super) struct RestQuery<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for RestPath<T> {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RestError> {
        let path = Path::from_request_parts(parts, state).await;
        let path = path.map_err(|rejection| misfit("path", &rejection.body_text()))?;
        Ok(Self(path.0))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for RestQuery<T> {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RestError> {
        let query = Query::from_request_parts(parts, state).await;
        let query = query.map_err(|rejection| misfit("query", &rejection.body_text()))?;
        Ok(Self(query.0))
    }
}

/// `problem` begins with what failed in the library.
fn misfit(part: &str, problem: &str) -> RestError {
    let problem = problem.split_once(": ").map_or(problem, |(_, problem)| problem);
    RestError::invalid(format!("the {part} does not fit: {problem}"), Map::new())
}

/// Calls a method in the workspace of the query, which pages use for streams: they cannot send the
/// header `jig-workspace` there.
pub(super) fn set_workspace<T>(
    request: &mut tonic::Request<T>,
    workspace: Option<String>,
) -> Result<(), RestError> {
    match workspace {
        Some(workspace) => set_metadata(request, "jig-workspace", &workspace),
        None => Ok(()),
    }
}

/// Sets a metadata key of a call.
pub(super) fn set_metadata<T>(
    request: &mut tonic::Request<T>,
    name: &'static str,
    value: &str,
) -> Result<(), RestError> {
    let value = value.parse().map_err(|_| {
        RestError::invalid(format!("'{name}' must be visible ASCII characters"), Map::new())
    })?;
    request.metadata_mut().insert(name, value);
    Ok(())
}
