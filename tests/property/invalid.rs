//! Requests that break one rule: by every door the reason is the same, and so are the fields that are named.
//! Nothing is begun.

use fastrand::Rng;
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value as Json};

use super::{
    Case,
    contract::{Contract, Tool},
    doors::{Came, Door, Why, by_name, typed},
    faults::{Fault, of_json, of_rules, of_tool},
    seeds,
    settled::settle,
    spelling::spelled,
    stage::Stage,
};
use crate::support::full_size;

/// Why a call fails that has begun: where a link leads is seen when it is gone, and an expression takes its time.
const SEEN_LATE: [&str; 2] = ["SYMLINK_BLOCKED", "INVALID_REGEX"];

#[tokio::test]
async fn an_invalid_request_is_refused_alike_by_every_door() {
    let (stage, contract) = (Stage::new().await, Contract::load());
    stage.set();
    for seed in seeds(3, 2) {
        for tool in &contract.tools {
            let (_case, mut rng) = Case::new(&tool.name, seed);
            let mut message = contract.random(&tool.method.input(), &mut rng);
            settle(&tool.name, &mut message, &stage.limits, &mut rng);
            let mut faults = of_rules(&contract, &message);
            faults.extend(of_tool(&contract, &tool.name, &message));
            let mut number = 0;
            let mut refusals = || {
                number += 1;
                Refusals {
                    stage: &stage,
                    contract: &contract,
                    tool,
                    session: format!("{}-{seed}-{number}", tool.name),
                }
            };
            let written = spelled(&message, &mut rng);
            for fault in some(faults, 6, &mut rng) {
                refusals().of_message(fault, &mut rng).await;
            }
            for fault in some(of_json(&message, &written, &mut rng), 5, &mut rng) {
                refusals().of_json(fault).await;
            }
        }
    }
    assert!(!stage.daemon.log().contains("by a defect"));
}

/// All of them at full size, and so many otherwise.
fn some<T>(mut faults: Vec<T>, number: usize, rng: &mut Rng) -> Vec<T> {
    rng.shuffle(&mut faults);
    faults.truncate(full_size(usize::MAX, number));
    faults
}

struct Refusals<'a> {
    stage: &'a Stage,
    contract: &'a Contract,
    tool: &'a Tool,
    session: String,
}

impl Refusals<'_> {
    async fn of_message(&self, fault: Fault<DynamicMessage>, rng: &mut Rng) {
        let session = format!("{}-typed", self.session);
        let came = typed(self.stage, self.tool, &session, &fault.request).await;
        let shown = format!("{:.1000}", serde_json::to_string(&fault.request).unwrap());
        let why = came.err().unwrap_or_else(|| panic!("{}: {shown}", fault.what));
        self.expect("typed", &fault, &why, &session, &shown);
        for door in Door::ALL {
            let params = spelled(&fault.request, rng);
            let (told, session, shown) = self.refused(door, &params).await;
            self.expect(&format!("{door:?}"), &fault, &told, &session, &shown);
            // A number that is none of an enum's is told with the names that each door takes.
            let is_same = match fault.what.starts_with("no value of") {
                true => told.reason == why.reason && told.fields.keys().eq(why.fields.keys()),
                false => told == why,
            };
            let what = &fault.what;
            assert!(is_same, "{what}: {door:?} says {told:?}, and typed {why:?}: {shown}");
        }
    }

    async fn of_json(&self, fault: Fault<Map<String, Json>>) {
        let mut before: Option<Why> = None;
        for door in Door::ALL {
            let (told, session, shown) = self.refused(door, &fault.request).await;
            self.expect(&format!("{door:?}"), &fault, &told, &session, &shown);
            if let Some(before) = &before {
                assert_eq!(told, *before, "{}: {door:?}: {shown}", fault.what);
            }
            before = Some(told);
        }
    }

    async fn refused(&self, door: Door, params: &Map<String, Json>) -> (Why, String, String) {
        let session = format!("{}-{door:?}", self.session);
        let name = ("", self.tool.name.as_str());
        let came: Came = by_name(self.stage, self.contract, door, name, &session, params).await;
        let shown = format!("{:.1000}", Json::Object(params.clone()).to_string());
        match came {
            Err(why) => (why, session, shown),
            Ok(data) => panic!("{} by {door:?}: {shown}: {data:?}", self.tool.name),
        }
    }

    fn expect<T>(&self, door: &str, fault: &Fault<T>, why: &Why, session: &str, shown: &str) {
        let field = fault.field.as_ref();
        let is_so =
            why.reason == fault.reason && field.is_none_or(|field| why.fields.contains_key(field));
        let Fault { what, reason, .. } = fault;
        assert!(
            is_so,
            "{}: {what}: {reason} of {field:?} is expected, and {door} says {why:?}: {shown}",
            self.tool.name,
        );
        let started = self.stage.started(session);
        assert!(
            started.is_empty() || SEEN_LATE.contains(reason),
            "{}: {what} by {door} is begun: {started:?}",
            self.tool.name
        );
    }
}
