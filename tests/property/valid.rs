//! Valid requests. Every frontend decodes them to the same parameters, with the same effect and
//! result.

use std::fmt;

use fastrand::Rng;
use prost::Message as _;
use prost_reflect::{DynamicMessage, Kind, ReflectMessage as _, Value};
use serde_json::{Map, Value as Json};

use super::{
    Case, case_seeds,
    contract::{Contract, ContractTool},
    fixture::PropertyFixture,
    frontends::{
        Frontend, ToolCallError, ToolCallOutput, call_by_name, call_typed_rpc, clear_times,
        decode_message,
    },
    json_variants::random_json,
    validity::{has_field, make_valid},
};

/// The result of a call; `None` if the frontend truncated the output.
type ComparableOutcome = Result<Option<DynamicMessage>, ToolCallError>;

/// Everything that must be the same through every frontend.
struct Observation {
    /// The decoded parameters, from the audit record.
    params: Option<Json>,
    /// The result of the call.
    outcome: ComparableOutcome,
    /// The workspace after the call.
    tree: crate::support::Tree,
}

#[tokio::test]
async fn valid_request_acts_alike_by_every_frontend() {
    let (fixture, contract) = (PropertyFixture::new().await, Contract::load());
    for seed in case_seeds(150, 3) {
        for tool in &contract.tools {
            check_tool(&fixture, &contract, tool, seed).await;
        }
    }
    assert!(!fixture.daemon.log().contains("internal error in a call"));
}

async fn check_tool(
    fixture: &PropertyFixture,
    contract: &Contract,
    tool: &ContractTool,
    seed: u64,
) {
    let (_case, mut rng) = Case::new(&tool.name, seed);
    let mut message = contract.random_message(&tool.method.input(), &mut rng);
    make_valid(&tool.name, &mut message, &fixture.limits, &mut rng);
    let session = |frontend: &str| format!("{}-{seed}-{frontend}", tool.name);
    let request = shortened_json(&message);

    let typed_session = session("typed");
    fixture.reset_workspace();
    prepare_session(fixture, contract, tool, &typed_session, seed).await;
    let typed_message = with_explicit_defaults(&message, &mut rng);

    let outcome = call_typed_rpc(fixture, tool, &typed_session, &typed_message).await;
    let expected = observe(fixture, tool, &typed_session, outcome.map(Some));
    if let Err(error) = &expected.outcome {
        // Some errors of a started call depend on the workspace, such as a file that is no
        // notebook.
        let was_rejected = error.reason == "INVALID_PARAMS" && expected.params.is_none();
        assert!(
            !was_rejected && error.reason != "INTERNAL",
            "{} of {request}: {error:?}",
            tool.name
        );
    }

    for frontend in Frontend::ALL {
        let params = random_json(&message, &mut rng);
        let session = session(&format!("{frontend:?}"));
        fixture.reset_workspace();
        prepare_session(fixture, contract, tool, &session, seed).await;
        let outcome =
            call_by_name(fixture, contract, frontend, ("", &tool.name), &session, &params).await;
        let outcome = outcome.map(|data| match data {
            ToolCallOutput::Complete(data) => Some(decode_message(&tool.method.output(), data)),
            ToolCallOutput::Truncated => None,
        });

        let observation = observe(fixture, tool, &session, outcome);
        let observations_match = observation.params == expected.params
            && observation.tree == expected.tree
            && outcomes_match(&message, &observation.outcome, &expected.outcome);
        assert!(
            observations_match,
            "{} through {frontend:?}: {}\n{observation:?}\ntyped: {request}\n{expected:?}",
            tool.name,
            Json::Object(params),
        );
    }
}

/// A copy that may contain zero values of enums, which count as unset.
fn with_explicit_defaults(message: &DynamicMessage, rng: &mut Rng) -> DynamicMessage {
    let mut copy = message.clone();
    for field in message.descriptor().fields() {
        if matches!(field.kind(), Kind::Enum(_)) && !message.has_field(&field) && rng.bool() {
            copy.set_field(&field, Value::EnumNumber(0));
        }
    }

    copy
}

/// Runs a command in the session if the tool reports on earlier commands.
async fn prepare_session(
    fixture: &PropertyFixture,
    contract: &Contract,
    tool: &ContractTool,
    session: &str,
    seed: u64,
) {
    if tool.name == "last_command" && !seed.is_multiple_of(4) {
        let mut params = Map::new();
        params.insert("command".to_owned(), "printf 'two\\n'".into());
        let outcome =
            call_by_name(fixture, contract, Frontend::Json, ("", "run"), session, &params);
        assert!(outcome.await.is_ok());
    }
}

fn observe(
    fixture: &PropertyFixture,
    tool: &ContractTool,
    session: &str,
    outcome: ComparableOutcome,
) -> Observation {
    let descriptor = tool.method.output();
    Observation {
        params: fixture.started_calls(session).pop().map(|(_, params)| params),
        outcome: outcome.map(|outcome| {
            outcome.map(|outcome| {
                // An explicit zero equals an absent one.
                let encoded = clear_times(outcome).encode_to_vec();
                DynamicMessage::decode(descriptor.clone(), &*encoded).unwrap()
            })
        }),
        tree: fixture.tree(),
    }
}

fn outcomes_match(
    request: &DynamicMessage,
    left: &ComparableOutcome,
    right: &ComparableOutcome,
) -> bool {
    // With low limits, the result of a command is not deterministic.
    let has_limits = request.descriptor().name() == "RunRequest" && has_field(request, "limits");
    match (left, right) {
        (Ok(Some(left)), Ok(Some(right))) => has_limits || left == right,
        (Ok(None), Ok(_)) => true,
        (Err(left), Err(right)) => left == right,
        (_, _) => has_limits,
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.as_ref().map(|outcome| outcome.as_ref().map(shortened_json));
        writeln!(f, "parameters {:.2000?}, outcome {outcome:.2000?}, workspace", self.params)?;
        for (path, (mode, content)) in &self.tree {
            writeln!(f, "{path:?} {mode:o} {:.500?}", String::from_utf8_lossy(content))?;
        }
        Ok(())
    }
}

fn shortened_json(message: &DynamicMessage) -> String {
    let mut json = serde_json::to_string(message).unwrap();
    json.truncate(json.floor_char_boundary(2000));
    json
}
