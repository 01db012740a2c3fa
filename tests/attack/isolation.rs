//! Requests that try to lower the isolation of a command (N11): no field, no parameter, no metadata
//! key and no variable of its environment does. The fields come from the descriptors, so a new
//! field is tested as soon as it exists.

use std::collections::BTreeSet;

use jig::api::{
    FILE_DESCRIPTOR_SET,
    v1::{RunRequest, StartRequest},
};
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _,
    Value,
};
use serde_json::{Value as Json, json};
use tonic::metadata::MetadataKey;

use crate::{
    invoke::{call, try_invoke},
    support::{Daemon, argv},
};

/// Prints what isolates the command, whatever its environment is.
const PROBE_SCRIPT: &str = r#"PATH=/usr/bin:/bin; unset LD_PRELOAD
sed 's/^[0-9]* [0-9]* [^ ]* //; s/,size=[^ ,]*//; s/,nr_inodes=[^ ,]*//' /proc/self/mountinfo
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/self/status
tail -n +3 /proc/net/dev | cut -d: -f1
ls /dev; cat /proc/sys/kernel/hostname
cat /proc/self/uid_map /proc/self/gid_map; touch /etc/x /usr/x /x 2>&1; ls / "#;
/// Fields that choose the command and the size of its output.
const PROBE_FIELDS: [&str; 3] = ["command", "argv", "max_output_bytes"];
/// Values that would disable isolation, if a field or parameter did.
const DISABLING_WORDS: [&str; 8] = ["", "/", "..", "0", "root", "host", "none", "L0"];
/// Parameters that disable the sandbox in other products, and invented ones.
const INVENTED_PARAMETERS: [&str; 20] = [
    "dangerouslyDisableSandbox",
    "dangerously_disable_sandbox",
    "disable_sandbox",
    "no_sandbox",
    "sandbox",
    "sandbox_permissions",
    "with_escalated_permissions",
    "allowOutsideWorkspace",
    "allow_outside_workspace",
    "unsandboxed",
    "privileged",
    "isolation",
    "minimum_level",
    "network",
    "uid",
    "user",
    "seccomp",
    "elevated",
    "host",
    "bypass",
];

/// Values to try for a field.
fn values_to_try(field: &FieldDescriptor) -> Vec<Value> {
    let single = match field.kind() {
        Kind::Bool => vec![Value::Bool(true), Value::Bool(false)],
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => [0, -1, i32::MAX].map(Value::I32).to_vec(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => [0, -1, i64::MAX].map(Value::I64).to_vec(),
        Kind::Uint32 | Kind::Fixed32 => [0, 1, 1000, u32::MAX].map(Value::U32).to_vec(),
        Kind::Uint64 | Kind::Fixed64 => [0, 1, 1 << 30, u64::MAX].map(Value::U64).to_vec(),
        Kind::Double => [0.0, -1.0, f64::MAX].map(Value::F64).to_vec(),
        Kind::Float => [0.0, -1.0, f32::MAX].map(Value::F32).to_vec(),
        Kind::String => DISABLING_WORDS.map(|word| Value::String(word.to_owned())).to_vec(),
        Kind::Bytes => DISABLING_WORDS.map(|word| Value::Bytes(word.into())).to_vec(),
        Kind::Enum(kind) => {
            let numbers = kind.values().map(|value| value.number());
            numbers.chain([99]).map(Value::EnumNumber).collect()
        }
        Kind::Message(message) => message_variants(&DynamicMessage::new(message)),
    };

    if field.is_list() {
        single.into_iter().map(|value| Value::List(vec![value])).collect()
    } else {
        single
    }
}

/// Variants of a message that differ in one field, including the fields of its messages.
fn message_variants(base: &DynamicMessage) -> Vec<Value> {
    let mut variants = Vec::new();
    let descriptor = base.descriptor();
    for field in descriptor.fields().filter(|field| !PROBE_FIELDS.contains(&field.name())) {
        if field.is_map() {
            continue; // the only map is `env`, which has its own test
        }
        for value in values_to_try(&field) {
            let mut variant = base.clone();
            variant.set_field(&field, value);
            variants.push(Value::Message(variant));
        }
    }

    variants
}

fn descriptor_pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap()
}

/// Variants of a request that differ in one field.
fn request_variants<T: Message + Default>(name: &str, base: &T) -> Vec<T> {
    let descriptor = descriptor_pool().get_message_by_name(name).unwrap();
    let base = DynamicMessage::decode(descriptor, base.encode_to_vec().as_slice()).unwrap();
    let typed = message_variants(&base).into_iter().map(|variant| match variant {
        Value::Message(message) => message.transcode_to().unwrap(),
        other => panic!("{other:?}"),
    });
    typed.collect()
}

fn probe_request() -> RunRequest {
    argv(&["/bin/sh", "-c", PROBE_SCRIPT])
}

/// The output of the probe in an ordinary run.
async fn probe_isolation(daemon: &Daemon) -> String {
    let first = daemon.output(probe_request()).await;
    assert_eq!(first, daemon.output(probe_request()).await, "the probe's output is stable");
    assert!(first.contains("CapEff:\t0000000000000000\n"), "{first}");
    first
}

#[tokio::test]
async fn case_n11_no_run_field_lowers_isolation() {
    let daemon = Daemon::start().await;
    let (level, expected) = (daemon.level().await, probe_isolation(&daemon).await);
    let requests = request_variants("jig.v1.RunRequest", &probe_request());
    let (mut same_count, request_count) = (0, requests.len());

    for request in requests {
        let text = format!("{request:?}");

        // The daemon refuses the request, or a lowered limit ends it, or it is fully isolated.
        if let Ok(response) = daemon.try_run(request).await {
            assert_eq!(response.isolation, level, "{text}");
            if response.exit_code == Some(0) {
                assert_eq!(response.stdout, expected, "{text}");
                same_count += 1;
            }
        }
    }

    assert!(
        request_count > 40 && same_count > request_count / 4,
        "{same_count} of {request_count}"
    );
}

#[tokio::test]
async fn case_n11_no_start_field_lowers_isolation() {
    let daemon = Daemon::start().await;
    let (level, expected) = (daemon.level().await, probe_isolation(&daemon).await);
    let base = StartRequest {
        argv: probe_request().argv,
        max_output_bytes: Some(1 << 16),
        ..StartRequest::default()
    };
    let requests = request_variants("jig.v1.StartRequest", &base);
    let (mut same_count, request_count) = (0, requests.len());

    for request in requests {
        let text = format!("{request:?}");
        let has_terminal = request.pty.is_some();
        let Ok(mut watch) = daemon.try_start_process(request).await else {
            continue;
        };

        let exited = watch.wait_for_exit().await;
        assert_eq!(exited.isolation, level, "{text}");

        // A command with a terminal sees one more device.
        if exited.exit_code == Some(0) && !has_terminal {
            assert_eq!(exited.stdout, expected, "{text}");
            same_count += 1;
        }
    }

    assert!(
        request_count > 40 && same_count > request_count / 4,
        "{same_count} of {request_count}"
    );
}

#[tokio::test]
async fn case_n11_no_variable_and_no_metadata_lowers_isolation() {
    let daemon = Daemon::start().await;
    let expected = probe_isolation(&daemon).await;
    for word in DISABLING_WORDS.into_iter().chain(["1", "true"]) {
        for name in INVENTED_PARAMETERS {
            let key = format!("jig-{}", name.to_lowercase().replace('_', "-"));
            let mut request = tonic::Request::new(probe_request());
            let key = MetadataKey::from_bytes(key.as_bytes()).unwrap();
            request.metadata_mut().insert(key.clone(), word.parse().unwrap());
            let answer = daemon.try_run(request).await;
            assert!(answer.is_ok_and(|response| response.stdout == expected), "{key}: {word}");
        }

        let names = INVENTED_PARAMETERS
            .map(|name| [name.to_uppercase(), format!("JIG_{}", name.to_uppercase())]);
        let env = names.into_iter().flatten().map(|name| (name, word.to_owned())).collect();
        let request = RunRequest { env, ..probe_request() };
        assert_eq!(daemon.output(request).await, expected, "{word}");
    }
}

/// The tool of each dialect that runs a command, and whether its definition ignores unknown
/// parameters.
const RUN_TOOLS: [(&str, &str, bool); 8] = [
    ("", "run", false),
    ("agentbench", "run", false),
    ("dracode", "run_command", true),
    ("claude", "Bash", false),
    ("cli_agent", "run_in_terminal", false),
    ("rauskuclaw", "tool_exec", false),
    ("openai", "shell", false),
    ("anthropic", "bash", false),
];

#[tokio::test]
async fn case_n11_no_invented_parameter_lowers_isolation() {
    let daemon = Daemon::start().await;
    let command = "id -u; tail -n +3 /proc/net/dev | cut -d: -f1; grep CapEff /proc/self/status; touch /etc/x; \
        touch ran";
    for (dialect, tool, ignores_unknown) in RUN_TOOLS {
        let invocation = |name: Option<&str>| {
            let mut params = match dialect {
                "dracode" => json!({"command": "sh", "arguments": format!("-c \"{command}\"")}),
                "openai" => json!({"commands": [command]}),
                _ => json!({"command": command}),
            };
            if let Some(name) = name {
                params[name] = Json::Bool(true);
            }
            call(dialect, tool, params)
        };

        let expected = try_invoke(&daemon, invocation(None)).await.unwrap();
        assert!(daemon.file("ran").exists(), "{dialect}: {expected:?}");

        for name in INVENTED_PARAMETERS {
            std::fs::remove_file(daemon.file("ran")).unwrap_or_default();
            let answer = try_invoke(&daemon, invocation(Some(name))).await;
            let was_run = daemon.file("ran").exists();
            assert_eq!(was_run, ignores_unknown, "{dialect} {name}: {answer:?}");
            if let (true, Ok(answer)) = (was_run, answer) {
                assert_eq!(answer.text, expected.text, "{dialect} {name}");
            }
        }
    }
}

/// Collects the names of all fields of a message and of the messages in it.
fn collect_fields(message: &MessageDescriptor, names: &mut BTreeSet<String>) {
    for field in message.fields() {
        let full_name = format!("{}.{}", message.full_name(), field.name());
        if let (true, Kind::Message(inner)) = (names.insert(full_name), field.kind()) {
            collect_fields(&inner, names);
        }
    }
}

#[test]
fn case_n11_no_request_field_name_suggests_lower_isolation() {
    let mut fields = BTreeSet::new();
    for service in descriptor_pool().services().filter(|service| service.package_name() == "jig.v1")
    {
        for method in service.methods() {
            collect_fields(&method.input(), &mut fields);
        }
    }
    assert!(fields.len() > 150, "{}", fields.len());

    let suspicious_words = [
        "sandbox",
        "isolat",
        "privilege",
        "namespace",
        "seccomp",
        "landlock",
        "network",
        "capabilit",
        "unsafe",
        "danger",
        "disable",
        "bypass",
        "escalat",
        "outside",
        "uid",
        "trust",
    ];

    let suspicious: Vec<_> = fields
        .iter()
        .filter(|field| suspicious_words.iter().any(|word| field.contains(word)))
        .collect();
    assert_eq!(suspicious, Vec::<&String>::new());
}
