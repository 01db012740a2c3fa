//! By every way in, a created workspace answers other callers like a name that was never used.

use std::sync::Arc;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use jig::api::v1::{CreateWorkspaceRequest, workspace_service_client::WorkspaceServiceClient};
use tempfile::TempDir;
use tonic::body::Body;

use super::{
    delete, read, run, upload,
    way::{Ask, Way, send},
};
use crate::{
    agent_sandbox::{TABLE, rest_channel},
    support::{Daemon, KeyFile, Setup, with_key},
};

const OF_ANOTHER: &str = "of-another";
const NEVER_USED: &str = "never-used";
const SECRET: &str = "xyzzy-content";

/// Status and body of a response, without what differs between two equal requests.
async fn get(daemon: &Daemon, is_rest: bool, path: &str, key: &str, workspace: &str) -> String {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header("x-api-key", key)
        .header("jig-workspace", workspace);
    let channel = if is_rest { rest_channel(daemon) } else { daemon.channel() };
    let request = request.body(Body::new(Full::<bytes::Bytes>::default())).unwrap();
    let response = send(channel, request).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body).replace(workspace, "NAME");
    let lines = body.split([',', '{', '}']).filter(|part| {
        !["call_id", "callId", "call-id", "trace", "time"].iter().any(|field| part.contains(field))
    });
    format!("{status} {}", lines.collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn workspaces_of_others_answer_as_names_that_were_never_used() {
    let keys = Arc::new(KeyFile::new());
    let owner = keys.add_key("owner", "invoke", &["--create-workspaces"]);
    let others = [
        keys.add_key("tenant", "invoke", &["--create-workspaces"]),
        keys.add_key("plain", "invoke", &[]),
        keys.add_key("limited", "admin", &["--for-workspace", "workspace"]),
    ];
    let directory = Arc::new(TempDir::with_prefix("jig-test-created-").unwrap());
    let path = directory.path();
    let table = format!("{TABLE}\n[workspaces_on_demand]\ndirectory = {path:?}\n");
    let path = keys.path();
    let setup = Setup::new().workspace_table(&table).with_resource(Arc::clone(&directory) as _);
    let setup = setup.arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.with_resource(Arc::clone(&keys) as _).start().await;
    let request =
        CreateWorkspaceRequest { name: OF_ANOTHER.to_owned(), ..CreateWorkspaceRequest::default() };
    let mut service = WorkspaceServiceClient::new(daemon.channel());
    service.create_workspace(with_key(&owner, request)).await.unwrap();
    let call = async |way: Way, key: &str, workspace: &str, ask: &Ask| {
        way.call(&daemon, &[("x-api-key", key), ("jig-workspace", workspace)], ask).await
    };
    let write = run(&format!("echo {SECRET} > secret"));
    call(Way::Grpc, &owner, OF_ANOTHER, &write).await.unwrap();

    let download = Ask::Download { path: "secret".to_owned() };
    for way in Way::ALL {
        let asks =
            [run("cat secret"), read("secret"), download.clone(), upload("f", "x"), delete("f")];
        for ask in asks.iter().filter(|ask| way.has(ask)) {
            for key in &others {
                let hidden = call(way, key, OF_ANOTHER, ask).await;
                let missing = call(way, key, NEVER_USED, ask).await;
                assert_eq!(hidden, missing, "{way:?} {ask:?}");
                assert!(hidden.is_err(), "{way:?} {ask:?}: {hidden:?}");
            }
        }
        let own = call(way, &owner, OF_ANOTHER, &run("cat secret")).await;
        assert_eq!(own, Ok(format!("{SECRET}\n")), "{way:?} does not take the name");
    }

    for (is_rest, path) in [
        (false, "/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        (false, "/v1/sessions/default/events"),
        (false, "/openapi.json"),
        (true, "/v1/files/secret"),
        (true, "/v1/metadata"),
    ] {
        for key in &others {
            let hidden = get(&daemon, is_rest, path, key, OF_ANOTHER).await;
            assert_eq!(hidden, get(&daemon, is_rest, path, key, NEVER_USED).await, "{path}");
            assert!(!hidden.contains(SECRET), "{path}: {hidden}");
        }
    }
}
