//! For other callers, a created workspace answers like a name that was never used, by every RPC.
//!
//! `tests/ways_in` has the other ways in.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jig::api::v1::{SubmitJobRequest, job_service_client::JobServiceClient};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use serde_json::{Value, json};
use tonic::{Request, Status, client::Grpc};

use super::{Creating, in_workspace, named};
use crate::support::{KeyFile, RawCodec, Refusal, Setup, shell, start_request, with_key};

const OF_ANOTHER: &str = "of-another";
const NEVER_USED: &str = "never-used";

/// What another caller has.
struct Ids {
    job: String,
    process: String,
}

/// Requests that would succeed in a workspace that the caller sees. Others are empty.
fn requests(ids: &Ids, workspace: &str) -> BTreeMap<&'static str, Value> {
    let (job, process) = (&*ids.job, &*ids.process);
    let run = json!({"tool": "run", "paramsJson": r#"{"command":"cat /workspace/*"}"#});
    let arguments = r#"{"command":"cat /workspace/*"}"#;
    let batch_call = json!({"callId": "1", "name": "run", "argumentsJson": arguments});
    [
        ("ToolService/Run", json!({"command": "cat /workspace/*"})),
        ("ToolService/ReadFile", json!({"path": "secret"})),
        ("ToolService/WriteFile", json!({"path": "planted", "content": "text"})),
        ("ToolService/StatPath", json!({"path": "secret"})),
        ("ToolService/Search", json!({"query": "secret"})),
        ("ToolService/DeletePath", json!({"path": "secret"})),
        ("ToolService/CreateDirectory", json!({"path": "planted"})),
        ("ToolService/AwaitJob", json!({"jobId": job})),
        ("TransferService/Download", json!({"path": "secret"})),
        ("TransferService/Upload", json!({"start": {"path": "planted", "sha256": "0".repeat(64)}})),
        ("TransferService/UploadTree", json!({"start": {"path": "planted"}})),
        ("InvokeService/Invoke", run.clone()),
        ("InvokeService/InvokeStream", run.clone()),
        ("InvokeService/InvokeBatch", json!({"calls": [batch_call]})),
        ("JobService/SubmitJob", run),
        ("JobService/GetJob", json!({"jobId": job})),
        ("JobService/WaitJob", json!({"jobId": job})),
        ("JobService/WatchJob", json!({"jobId": job})),
        ("JobService/CancelJob", json!({"jobId": job})),
        ("ProcessService/Start", json!({"command": "cat /workspace/*"})),
        ("ProcessService/Attach", json!({"processId": process})),
        ("ProcessService/WriteStdin", json!({"processId": process})),
        ("ProcessService/SendSignal", json!({"processId": process, "signal": "SIGKILL"})),
        ("ProcessService/ResizeTerminal", json!({"processId": process, "rows": 9, "cols": 9})),
        ("ArtifactService/ReadArtifact", json!({"path": "logs/tool_step_0001_stdout.txt"})),
        ("WorkspaceService/GetWorkspace", json!({"name": workspace})),
        ("WorkspaceService/UpdateWorkspace", json!({"name": workspace, "ttlSec": 1})),
        ("WorkspaceService/DeleteWorkspace", json!({"name": workspace})),
        ("WorkspaceService/CreateWorkspace", json!({"name": "mine", "cloneOf": workspace})),
    ]
    .into()
}

/// Calls an RPC. Returns its responses, or its error without the name of the workspace, as text.
async fn outcome(
    creating: &Creating,
    method: &MethodDescriptor,
    request: &Value,
    key: &str,
    workspace: &str,
) -> Result<String, String> {
    let message = DynamicMessage::deserialize(method.input(), request)
        .unwrap_or_else(|error| panic!("{}: {error}", method.full_name()));

    let mut grpc = Grpc::new(creating.daemon.channel());
    grpc.ready().await.unwrap();
    let mut request = Request::new(tokio_stream::iter([message.encode_to_vec()]));
    for (name, value) in [("x-api-key", key), ("jig-workspace", workspace)] {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    request.set_timeout(Duration::from_secs(20));
    let service = method.parent_service().full_name().to_owned();
    let path = format!("/{service}/{}", method.name()).parse().unwrap();
    let responses = async {
        let mut responses = grpc.streaming(request, path, RawCodec).await?.into_inner();
        let mut all = Vec::new();
        while let Some(response) = responses.message().await? {
            let decoded = DynamicMessage::decode(method.output(), &*response).unwrap();
            all.push(serde_json::to_string(&decoded).unwrap());
        }
        Ok::<_, Status>(all)
    };
    responses.await.map(|responses| responses.join("\n")).map_err(|status| {
        let Refusal { reason, message, .. } = Refusal::from_status(&status);
        format!("{reason}: {message}").replace(workspace, "NAME")
    })
}

#[tokio::test]
async fn every_rpc_answers_as_for_a_name_that_was_never_used() {
    let keys = Arc::new(KeyFile::new());
    let owner = keys.add_key("owner", "invoke", &["--create-workspaces"]);
    let others = [
        keys.add_key("tenant", "invoke", &["--create-workspaces"]),
        keys.add_key("plain", "invoke", &[]),
        // An administrator of one workspace.
        keys.add_key("limited", "admin", &["--for-workspace", "workspace", "--create-workspaces"]),
    ];
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let creating = Creating::start(setup.with_resource(Arc::clone(&keys) as _), "").await;
    creating.create(with_key(&owner, named(OF_ANOTHER))).await;

    let as_owner = |mut request: Request<_>| {
        request.metadata_mut().insert("x-api-key", owner.parse().unwrap());
        request
    };
    let run = in_workspace(OF_ANOTHER, shell("echo xyzzy-content > secret; echo xyzzy-printed"));
    creating.daemon.try_run(as_owner(run)).await.unwrap();
    let mut start = in_workspace(OF_ANOTHER, start_request(shell("sleep 1000")));
    start.metadata_mut().insert("x-api-key", owner.parse().unwrap());
    let process = creating.daemon.start_process(start).await;
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: json!({"command": "sleep 1000"}).to_string(),
        ..SubmitJobRequest::default()
    };
    let mut submit = in_workspace(OF_ANOTHER, submit);
    submit.metadata_mut().insert("x-api-key", owner.parse().unwrap());
    let mut jobs = JobServiceClient::new(creating.daemon.channel());
    let job = jobs.submit_job(submit).await.unwrap().into_inner().job.unwrap().job_id;
    let ids = Ids { job, process: process.id.clone() };

    let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
    let mut refused = 0;
    for method in pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
        let service = method.parent_service();
        if service.package_name() != "jig.v1" {
            continue;
        }
        let name = format!("{}/{}", service.name(), method.name());
        for key in &others {
            let call = async |workspace: &str| {
                let request = requests(&ids, workspace).remove(&*name).unwrap_or(json!({}));
                outcome(&creating, &method, &request, key, workspace).await
            };
            let [hidden, missing] = [call(OF_ANOTHER).await, call(NEVER_USED).await];
            match (&hidden, &missing) {
                // Responses have times.
                (Ok(hidden), Ok(_)) => assert!(!hidden.contains(OF_ANOTHER), "{name}: {hidden}"),
                _ => assert_eq!(hidden, missing, "{name}"),
            }
            let text = hidden.clone().unwrap_or_else(|error| error);
            for content in ["xyzzy-content", "xyzzy-printed"] {
                assert!(!text.contains(content), "{name}: {text}");
            }
            refused += u32::from(text.starts_with("UNKNOWN_WORKSPACE"));
        }
    }
    assert!(refused > 80, "most calls name the workspace: {refused}");

    // Nothing has happened to it.
    let mut run = in_workspace(OF_ANOTHER, shell("ls"));
    run.metadata_mut().insert("x-api-key", owner.parse().unwrap());
    assert_eq!(creating.daemon.run(run).await.stdout, "secret\n");
}
