//! Requests that break one rule: by every door the reason is the same, and so are the fields that are named.
//! Nothing is begun.

use fastrand::Rng;
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value as Json};

use super::{
    Case, case_seeds,
    contract::{Contract, ContractTool},
    faults::{FaultyRequest, json_faults, rule_faults, tool_faults},
    fixture::PropertyFixture,
    frontends::{Frontend, ToolCallError, ToolCallOutcome, call_by_name, call_typed_rpc},
    json_variants::random_json,
    validity::make_valid,
};
use crate::support::full_size;

/// Why a call fails that has begun: where a link leads is seen when it is gone, and an expression takes its time.
const REASONS_AFTER_START: [&str; 2] = ["SYMLINK_BLOCKED", "INVALID_REGEX"];

#[tokio::test]
async fn every_frontend_rejects_invalid_requests_alike() {
    let (fixture, contract) = (PropertyFixture::new().await, Contract::load());
    fixture.reset_workspace();
    for seed in case_seeds(3, 2) {
        for tool in &contract.tools {
            let (_case, mut rng) = Case::new(&tool.name, seed);
            let mut message = contract.random_message(&tool.method.input(), &mut rng);
            make_valid(&tool.name, &mut message, &fixture.limits, &mut rng);
            let mut faults = rule_faults(&contract, &message);
            faults.extend(tool_faults(&contract, &tool.name, &message));
            let mut number = 0;
            let mut next_check = || {
                number += 1;
                RejectionCheck {
                    fixture: &fixture,
                    contract: &contract,
                    tool,
                    session: format!("{}-{seed}-{number}", tool.name),
                }
            };
            let written = random_json(&message, &mut rng);
            for fault in sample(faults, 6, &mut rng) {
                next_check().check_message(fault, &mut rng).await;
            }
            for fault in sample(json_faults(&message, &written, &mut rng), 5, &mut rng) {
                next_check().check_json(fault).await;
            }
        }
    }
    assert!(!fixture.daemon.log().contains("internal error in a call"));
}

/// All of them at full size, and so many otherwise.
fn sample<T>(mut faults: Vec<T>, number: usize, rng: &mut Rng) -> Vec<T> {
    rng.shuffle(&mut faults);
    faults.truncate(full_size(usize::MAX, number));
    faults
}

struct RejectionCheck<'a> {
    fixture: &'a PropertyFixture,
    contract: &'a Contract,
    tool: &'a ContractTool,
    session: String,
}

impl RejectionCheck<'_> {
    async fn check_message(&self, fault: FaultyRequest<DynamicMessage>, rng: &mut Rng) {
        let session = format!("{}-typed", self.session);
        let outcome = call_typed_rpc(self.fixture, self.tool, &session, &fault.request).await;
        let shown = format!("{:.1000}", serde_json::to_string(&fault.request).unwrap());
        let typed_error = outcome.err().unwrap_or_else(|| panic!("{}: {shown}", fault.what));
        self.assert_expected_error("typed", &fault, &typed_error, &session, &shown);
        for frontend in Frontend::ALL {
            let params = random_json(&fault.request, rng);
            let (error, session, shown) = self.call_expecting_rejection(frontend, &params).await;
            self.assert_expected_error(&format!("{frontend:?}"), &fault, &error, &session, &shown);
            // A number that is none of an enum's is told with the names that each door takes.
            let is_same = match fault.what.starts_with("no value of") {
                true => {
                    error.reason == typed_error.reason
                        && error.fields.keys().eq(typed_error.fields.keys())
                }
                false => error == typed_error,
            };
            let what = &fault.what;
            assert!(
                is_same,
                "{what}: {frontend:?} says {error:?}, and typed {typed_error:?}: {shown}"
            );
        }
    }

    async fn check_json(&self, fault: FaultyRequest<Map<String, Json>>) {
        let mut before: Option<ToolCallError> = None;
        for frontend in Frontend::ALL {
            let (error, session, shown) =
                self.call_expecting_rejection(frontend, &fault.request).await;
            self.assert_expected_error(&format!("{frontend:?}"), &fault, &error, &session, &shown);
            if let Some(before) = &before {
                assert_eq!(error, *before, "{}: {frontend:?}: {shown}", fault.what);
            }
            before = Some(error);
        }
    }

    async fn call_expecting_rejection(
        &self,
        frontend: Frontend,
        params: &Map<String, Json>,
    ) -> (ToolCallError, String, String) {
        let session = format!("{}-{frontend:?}", self.session);
        let name = ("", self.tool.name.as_str());
        let outcome: ToolCallOutcome =
            call_by_name(self.fixture, self.contract, frontend, name, &session, params).await;
        let shown = format!("{:.1000}", Json::Object(params.clone()).to_string());
        match outcome {
            Err(why) => (why, session, shown),
            Ok(data) => panic!("{} by {frontend:?}: {shown}: {data:?}", self.tool.name),
        }
    }

    fn assert_expected_error<T>(
        &self,
        frontend: &str,
        fault: &FaultyRequest<T>,
        error: &ToolCallError,
        session: &str,
        shown: &str,
    ) {
        let field = fault.field.as_ref();
        let is_so = error.reason == fault.reason
            && field.is_none_or(|field| error.fields.contains_key(field));
        let FaultyRequest { what, reason, .. } = fault;
        assert!(
            is_so,
            "{}: {what}: {reason} of {field:?} is expected, and {frontend} says {error:?}: {shown}",
            self.tool.name,
        );
        let started = self.fixture.started_calls(session);
        assert!(
            started.is_empty() || REASONS_AFTER_START.contains(reason),
            "{}: {what} by {frontend} is begun: {started:?}",
            self.tool.name
        );
    }
}
