//! The role that each RPC requires: one row for every RPC.

use std::{collections::BTreeMap, sync::Arc};

use prost_reflect::DescriptorPool;
use tonic::{Code, Request, Status, client::Grpc};

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, RawCodec, Refusal, Setup};

/// A role, and the methods of a service that require it.
type RoleMethods = (&'static str, &'static [&'static str]);

/// The rows of each service.
const REQUIRED_ROLES: &[(&str, &[RoleMethods])] = &[
    (
        "ApprovalService",
        &[(
            "admin",
            &[
                "CreateRule",
                "DecideApproval",
                "DeleteRule",
                "GetApproval",
                "ListApprovals",
                "ListRules",
                "UpdateRule",
                "WatchApprovals",
            ],
        )],
    ),
    ("ArtifactService", &[("read", &["ListArtifacts"]), ("invoke", &["ReadArtifact"])]),
    ("CatalogService", &[("read", &["ListTools"])]),
    ("DaemonService", &[("read", &["GetInfo"])]),
    ("EventService", &[("read", &["ListSessions", "WatchEvents"])]),
    ("InvokeService", &[("invoke", &["Invoke", "InvokeBatch", "InvokeStream"])]),
    (
        "JobService",
        &[
            ("read", &["GetJob", "ListJobs", "WaitJob"]),
            ("invoke", &["CancelJob", "SubmitJob", "WatchJob"]),
        ],
    ),
    (
        "ProcessService",
        &[
            ("read", &["ListProcesses"]),
            (
                "invoke",
                &["Attach", "ForwardPort", "ResizeTerminal", "SendSignal", "Start", "WriteStdin"],
            ),
        ],
    ),
    (
        "ToolService",
        &[(
            "invoke",
            &[
                "ApplyPatch",
                "AwaitJob",
                "CreateDirectory",
                "DeletePath",
                "EditFile",
                "EditNotebook",
                "FetchUrl",
                "LastCommand",
                "ListDirectory",
                "ListFiles",
                "MovePath",
                "ReadFile",
                "ReadNotebook",
                "Run",
                "Search",
                "StatPath",
                "WriteFile",
            ],
        )],
    ),
    (
        "TransferService",
        &[("invoke", &["Download", "DownloadTree", "GetUpload", "Upload", "UploadTree"])],
    ),
    ("WatchService", &[("invoke", &["WatchFiles"])]),
    (
        "WorkspaceService",
        &[
            ("read", &["GetWorkspace", "ListWorkspaces"]),
            ("invoke", &["CreateWorkspace", "DeleteWorkspace", "UpdateWorkspace"]),
        ],
    ),
];
/// The roles. Each one includes the permissions of those before it.
pub(crate) const ROLES: [&str; 3] = ["read", "invoke", "admin"];

/// Calls a method with an empty message.
async fn call_method(daemon: &Daemon, method: &str, key: Option<&str>) -> Result<(), Status> {
    let mut grpc = Grpc::new(daemon.channel());
    grpc.ready().await.unwrap();

    let mut request = Request::new(tokio_stream::iter([Vec::new()]));
    if let Some(key) = key {
        let key = key.parse().unwrap();
        request.metadata_mut().insert("x-api-key", key);
    }

    request.set_timeout(std::time::Duration::from_secs(10));
    let path = format!("/{method}").parse().unwrap();
    let mut responses = grpc.streaming(request, path, RawCodec).await?.into_inner();
    responses.message().await.map(drop)
}

/// The index in [`ROLES`] of the role that each RPC requires.
pub(crate) fn required_levels() -> BTreeMap<String, usize> {
    let level = |role: &str| ROLES.iter().position(|known| *known == role).unwrap();
    let rows = REQUIRED_ROLES.iter().flat_map(|(service, roles)| {
        roles.iter().flat_map(move |(role, methods)| {
            let row = move |method| (format!("jig.v1.{service}/{method}"), level(role));
            methods.iter().map(row)
        })
    });

    rows.collect()
}

#[test]
fn every_rpc_has_a_row() {
    let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
    let methods = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let path = |method: prost_reflect::MethodDescriptor| {
        format!("{}/{}", method.parent_service().full_name(), method.name())
    };
    let mut methods_of_contract: Vec<_> = methods.map(path).collect();
    methods_of_contract.sort();
    let rows: Vec<_> = required_levels().into_keys().collect();

    assert_eq!(rows, methods_of_contract);
}

#[tokio::test]
async fn each_rpc_requires_the_role_of_its_row() {
    let keys = Arc::new(KeyFile::new());
    let [read, invoke, admin] = ROLES.map(|role| keys.add_key(role, role, &[]));

    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    for (method, required_level) in required_levels() {
        // A method that watches waits until the deadline, for each role that may call it.
        let call = |key| call_method(&daemon, &method, Some(key));
        let results = tokio::join!(call(&read), call(&invoke), call(&admin));
        for (level, result) in [results.0, results.1, results.2].into_iter().enumerate() {
            let reason = result.err().map(|status| {
                assert_ne!(status.code(), Code::Unauthenticated, "{method}: {status}");
                Refusal::from_status(&status).reason
            });
            let is_forbidden = reason.as_deref() == Some("FORBIDDEN");
            let role = ROLES[level];
            assert_eq!(is_forbidden, level < required_level, "{method} for {role}: {reason:?}");
        }

        for key in [None, Some("jig_no-key")] {
            let refusal =
                Refusal::from_status(&call_method(&daemon, &method, key).await.unwrap_err());
            assert_eq!(refusal.reason, "UNAUTHENTICATED", "{method}: {refusal:?}");
        }
    }

    // An unauthenticated caller does not learn which methods exist.
    let unknown = "jig.v1.ToolService/Dance";
    let refusal = Refusal::from_status(&call_method(&daemon, unknown, None).await.unwrap_err());
    assert_eq!(refusal.reason, "UNAUTHENTICATED");

    let status = call_method(&daemon, unknown, Some(&read)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn health_needs_no_key_and_reflection_needs_one() {
    let keys = Arc::new(KeyFile::new());
    let read_key = keys.add_key("probe", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    daemon.health().await;

    for version in ["v1", "v1alpha"] {
        let method = format!("grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let refusal = Refusal::from_status(&call_method(&daemon, &method, None).await.unwrap_err());
        assert_eq!(refusal.reason, "UNAUTHENTICATED");
        let result = call_method(&daemon, &method, Some(&read_key)).await;
        let code = result.err().map(|status| status.code());
        assert_ne!(code, Some(Code::Unauthenticated));
    }
}
