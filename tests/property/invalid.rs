//! Requests that break one rule. Every frontend reports the same reason and the same fields, and no
//! call starts.

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

/// Reasons of calls that fail after their start. The tool must open a link to see where it leads,
/// and compiling an expression takes time.
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

            let json = random_json(&message, &mut rng);
            for fault in sample(faults, 6, &mut rng) {
                next_check().check_message(fault, &mut rng).await;
            }

            for fault in sample(json_faults(&message, &json, &mut rng), 5, &mut rng) {
                next_check().check_json(fault).await;
            }
        }
    }

    assert!(!fixture.daemon.log().contains("internal error in a call"));
}

/// A random selection of `number` faults; all of them in a full test.
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
        let request = format!("{:.1000}", serde_json::to_string(&fault.request).unwrap());
        let typed_error =
            outcome.err().unwrap_or_else(|| panic!("{}: {request}", fault.description));
        self.assert_expected_error("typed", &fault, &typed_error, &session, &request);

        for frontend in Frontend::ALL {
            let params = random_json(&fault.request, rng);
            let (error, session, request) = self.call_expecting_rejection(frontend, &params).await;
            self.assert_expected_error(
                &format!("{frontend:?}"),
                &fault,
                &error,
                &session,
                &request,
            );

            // For an unknown enum number, each frontend lists the names that it accepts.
            let errors_match = if fault.description.starts_with("no value of") {
                error.reason == typed_error.reason
                    && error.fields.keys().eq(typed_error.fields.keys())
            } else {
                error == typed_error
            };

            let description = &fault.description;
            assert!(
                errors_match,
                "{description}: {frontend:?} reports {error:?}, typed {typed_error:?}: {request}"
            );
        }
    }

    async fn check_json(&self, fault: FaultyRequest<Map<String, Json>>) {
        let mut expected: Option<ToolCallError> = None;
        for frontend in Frontend::ALL {
            let (error, session, request) =
                self.call_expecting_rejection(frontend, &fault.request).await;
            self.assert_expected_error(
                &format!("{frontend:?}"),
                &fault,
                &error,
                &session,
                &request,
            );
            if let Some(expected) = &expected {
                assert_eq!(error, *expected, "{}: {frontend:?}: {request}", fault.description);
            }

            expected = Some(error);
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

        let request = format!("{:.1000}", Json::Object(params.clone()).to_string());
        match outcome {
            Err(error) => (error, session, request),
            Ok(data) => {
                panic!("{} through {frontend:?} accepts {request}: {data:?}", self.tool.name)
            }
        }
    }

    fn assert_expected_error<T>(
        &self,
        frontend: &str,
        fault: &FaultyRequest<T>,
        error: &ToolCallError,
        session: &str,
        request: &str,
    ) {
        let field = fault.field.as_ref();
        let is_expected = error.reason == fault.reason
            && field.is_none_or(|field| error.fields.contains_key(field));
        let FaultyRequest { description, reason, .. } = fault;
        assert!(
            is_expected,
            "{}: {description}: expected {reason} of {field:?}, but {frontend} reports {error:?}: {request}",
            self.tool.name,
        );

        let started = self.fixture.started_calls(session);
        assert!(
            started.is_empty() || REASONS_AFTER_START.contains(reason),
            "{}: {description} through {frontend} started calls: {started:?}",
            self.tool.name
        );
    }
}
