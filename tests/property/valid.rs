//! Requests that keep the rules: what is read out of them is the same by every door, and so is what comes of
//! them.

use std::fmt;

use fastrand::Rng;
use prost::Message as _;
use prost_reflect::{DynamicMessage, Kind, ReflectMessage as _, Value};
use serde_json::{Map, Value as Json};

use super::{
    Case,
    contract::{Contract, Tool},
    doors::{Data, Door, Why, as_message, by_name, typed, without_times},
    seeds,
    settled::{has, settle},
    spelling::spelled,
    stage::Stage,
};

/// What was answered; nothing where that was too much for the door.
type Answer = Result<Option<DynamicMessage>, Why>;

/// What is to be the same by every door.
struct Seen {
    /// What was read, as the record has it.
    params: Option<Json>,
    /// What came of it.
    answer: Answer,
    /// What became of the workspace.
    tree: crate::support::Tree,
}

#[tokio::test]
async fn a_valid_request_is_the_same_by_every_door() {
    let (stage, contract) = (Stage::new().await, Contract::load());
    for seed in seeds(150, 3) {
        for tool in &contract.tools {
            check(&stage, &contract, tool, seed).await;
        }
    }
    assert!(!stage.daemon.log().contains("by a defect"));
}

async fn check(stage: &Stage, contract: &Contract, tool: &Tool, seed: u64) {
    let (_case, mut rng) = Case::new(&tool.name, seed);
    let mut message = contract.random(&tool.method.input(), &mut rng);
    settle(&tool.name, &mut message, &stage.limits, &mut rng);
    let session = |door: &str| format!("{}-{seed}-{door}", tool.name);
    let shown = json(&message);

    let of_typed = session("typed");
    stage.set();
    prepare(stage, contract, tool, &of_typed, seed).await;
    let sent = not_declared(&message, &mut rng);
    let answer = typed(stage, tool, &of_typed, &sent).await;
    let expected = seen(stage, tool, &of_typed, answer.map(Some));
    if let Err(why) = &expected.answer {
        // What is found wrong once it has begun is so in the workspace, such as a notebook that is none.
        let is_refused = why.reason == "INVALID_PARAMS" && expected.params.is_none();
        assert!(!is_refused && why.reason != "INTERNAL", "{} of {shown}: {why:?}", tool.name);
    }
    for door in Door::ALL {
        let params = spelled(&message, &mut rng);
        let session = session(&format!("{door:?}"));
        stage.set();
        prepare(stage, contract, tool, &session, seed).await;
        let came = by_name(stage, contract, door, ("", &tool.name), &session, &params).await;
        let answer = came.map(|data| match data {
            Data::Whole(data) => Some(as_message(&tool.method.output(), data)),
            Data::Part => None,
        });
        let seen = seen(stage, tool, &session, answer);
        let is_same = seen.params == expected.params
            && seen.tree == expected.tree
            && is_same_answer(&message, &seen.answer, &expected.answer);
        assert!(
            is_same,
            "{} by {door:?}: {}\n{seen:?}\nand typed {shown}\n{expected:?}",
            tool.name,
            Json::Object(params),
        );
    }
}

/// The same, perhaps with first values of enums, which are as good as not given.
fn not_declared(message: &DynamicMessage, rng: &mut Rng) -> DynamicMessage {
    let mut same = message.clone();
    for field in message.descriptor().fields() {
        if matches!(field.kind(), Kind::Enum(_)) && !message.has_field(&field) && rng.bool() {
            same.set_field(&field, Value::EnumNumber(0));
        }
    }
    same
}

/// Gives a session a past where a tool is about that.
async fn prepare(stage: &Stage, contract: &Contract, tool: &Tool, session: &str, seed: u64) {
    if tool.name == "last_command" && !seed.is_multiple_of(4) {
        let mut params = Map::new();
        params.insert("command".to_owned(), "printf 'two\\n'".into());
        let ran = by_name(stage, contract, Door::Text, ("", "run"), session, &params);
        assert!(ran.await.is_ok());
    }
}

fn seen(stage: &Stage, tool: &Tool, session: &str, answer: Answer) -> Seen {
    let of = tool.method.output();
    Seen {
        params: stage.started(session).pop().map(|(_, params)| params),
        answer: answer.map(|answer| {
            answer.map(|answer| {
                // Whether a zero was written down is no matter.
                let encoded = without_times(answer).encode_to_vec();
                DynamicMessage::decode(of.clone(), &*encoded).unwrap()
            })
        }),
        tree: stage.tree(),
    }
}

fn is_same_answer(request: &DynamicMessage, one: &Answer, other: &Answer) -> bool {
    // With little room, what a command comes to is a matter of luck.
    let is_narrow = request.descriptor().name() == "RunRequest" && has(request, "limits");
    match (one, other) {
        (Ok(Some(one)), Ok(Some(other))) => is_narrow || one == other,
        (Ok(None), Ok(_)) => true,
        (Err(one), Err(other)) => one == other,
        (_, _) => is_narrow,
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.answer.as_ref().map(|answer| answer.as_ref().map(json));
        writeln!(f, "read {:.2000?}, answered {answer:.2000?}, and left", self.params)?;
        for (path, (mode, content)) in &self.tree {
            writeln!(f, "{path:?} {mode:o} {:.500?}", String::from_utf8_lossy(content))?;
        }
        Ok(())
    }
}

fn json(message: &DynamicMessage) -> String {
    let mut json = serde_json::to_string(message).unwrap();
    json.truncate(json.floor_char_boundary(2000));
    json
}
