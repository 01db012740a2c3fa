//! Requests that keep the rules: what is read out of them is the same by every door, and so is what comes of
//! them.

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

/// What was answered; nothing where that was too much for the door.
type ComparableOutcome = Result<Option<DynamicMessage>, ToolCallError>;

/// What is to be the same by every door.
struct Observation {
    /// What was read, as the record has it.
    params: Option<Json>,
    /// What came of it.
    answer: ComparableOutcome,
    /// What became of the workspace.
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
    let shown = shortened_json(&message);

    let of_typed = session("typed");
    fixture.reset_workspace();
    prepare_session(fixture, contract, tool, &of_typed, seed).await;
    let sent = with_explicit_defaults(&message, &mut rng);
    let answer = call_typed_rpc(fixture, tool, &of_typed, &sent).await;
    let expected = observe(fixture, tool, &of_typed, answer.map(Some));
    if let Err(why) = &expected.answer {
        // What is found wrong once it has begun is so in the workspace, such as a notebook that is none.
        let is_refused = why.reason == "INVALID_PARAMS" && expected.params.is_none();
        assert!(!is_refused && why.reason != "INTERNAL", "{} of {shown}: {why:?}", tool.name);
    }
    for frontend in Frontend::ALL {
        let params = random_json(&message, &mut rng);
        let session = session(&format!("{frontend:?}"));
        fixture.reset_workspace();
        prepare_session(fixture, contract, tool, &session, seed).await;
        let outcome =
            call_by_name(fixture, contract, frontend, ("", &tool.name), &session, &params).await;
        let answer = outcome.map(|data| match data {
            ToolCallOutput::Complete(data) => Some(decode_message(&tool.method.output(), data)),
            ToolCallOutput::Truncated => None,
        });
        let seen = observe(fixture, tool, &session, answer);
        let is_same = seen.params == expected.params
            && seen.tree == expected.tree
            && outcomes_match(&message, &seen.answer, &expected.answer);
        assert!(
            is_same,
            "{} by {frontend:?}: {}\n{seen:?}\nand typed {shown}\n{expected:?}",
            tool.name,
            Json::Object(params),
        );
    }
}

/// The same, perhaps with first values of enums, which are as good as not given.
fn with_explicit_defaults(message: &DynamicMessage, rng: &mut Rng) -> DynamicMessage {
    let mut same = message.clone();
    for field in message.descriptor().fields() {
        if matches!(field.kind(), Kind::Enum(_)) && !message.has_field(&field) && rng.bool() {
            same.set_field(&field, Value::EnumNumber(0));
        }
    }
    same
}

/// Gives a session a past where a tool is about that.
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
        let ran = call_by_name(fixture, contract, Frontend::Json, ("", "run"), session, &params);
        assert!(ran.await.is_ok());
    }
}

fn observe(
    fixture: &PropertyFixture,
    tool: &ContractTool,
    session: &str,
    answer: ComparableOutcome,
) -> Observation {
    let of = tool.method.output();
    Observation {
        params: fixture.started_calls(session).pop().map(|(_, params)| params),
        answer: answer.map(|answer| {
            answer.map(|answer| {
                // Whether a zero was written down is no matter.
                let encoded = clear_times(answer).encode_to_vec();
                DynamicMessage::decode(of.clone(), &*encoded).unwrap()
            })
        }),
        tree: fixture.tree(),
    }
}

fn outcomes_match(
    request: &DynamicMessage,
    one: &ComparableOutcome,
    other: &ComparableOutcome,
) -> bool {
    // With little room, what a command comes to is a matter of luck.
    let is_narrow = request.descriptor().name() == "RunRequest" && has_field(request, "limits");
    match (one, other) {
        (Ok(Some(one)), Ok(Some(other))) => is_narrow || one == other,
        (Ok(None), Ok(_)) => true,
        (Err(one), Err(other)) => one == other,
        (_, _) => is_narrow,
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.answer.as_ref().map(|answer| answer.as_ref().map(shortened_json));
        writeln!(f, "read {:.2000?}, answered {answer:.2000?}, and left", self.params)?;
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
