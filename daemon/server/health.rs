//! Health (`grpc.health.v1`): of the whole, of each service, and under two names for probes.
//!
//! | name | SERVING while |
//! |---|---|
//! | `liveness` | the process answers: a restart mends nothing else |
//! | `readiness`, and the empty name | calls are taken, connections are accepted, the state directory is there, and commands are run |
//! | a service | the same, of commands only where they are its work |

use std::sync::Arc;

use tokio::sync::Mutex;
use tonic_health::{ServingStatus, server::HealthReporter};

/// For a probe that restarts the daemon.
const LIVENESS_SERVICE: &str = "liveness";
/// For a probe that sends calls elsewhere.
const READINESS_SERVICE: &str = "readiness";
/// Services whose work is to run commands.
const COMMAND_SERVICES: [&str; 4] =
    ["jig.v1.InvokeService", "jig.v1.JobService", "jig.v1.ProcessService", "jig.v1.ToolService"];

/// What is reported, and from what.
#[derive(Clone)]
pub(super) struct Health(Arc<Mutex<HealthReport>>);

struct HealthReport {
    reporter: HealthReporter,
    services: Vec<String>,
    conditions: HealthConditions,
}

/// What the daemon knows about itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HealthConditions {
    pub(super) is_draining: bool,
    pub(super) runs_commands: bool,
    /// Listeners that can accept no connection at the moment.
    pub(super) failing_listeners: usize,
    pub(super) has_lost_state: bool,
}

impl Health {
    /// Reports the health of these services, and of the whole.
    pub(super) async fn start(
        reporter: HealthReporter,
        services: Vec<String>,
        conditions: HealthConditions,
    ) -> Self {
        reporter.set_service_status(LIVENESS_SERVICE, ServingStatus::Serving).await;
        let report = HealthReport { reporter, services, conditions };
        report.publish().await;
        Self(Arc::new(Mutex::new(report)))
    }

    /// Changes what is known; returns what `change` does. Changes are reported one after the other.
    pub(super) async fn update<T>(&self, change: impl FnOnce(&mut HealthConditions) -> T) -> T {
        let mut report = self.0.lock().await;
        let result = change(&mut report.conditions);
        report.publish().await;
        result
    }
}

impl HealthReport {
    async fn publish(&self) {
        let HealthConditions { is_draining, runs_commands, failing_listeners, has_lost_state } =
            self.conditions;
        let serves = !is_draining && failing_listeners == 0 && !has_lost_state;
        let wholes = ["", READINESS_SERVICE].map(|name| (name, true));
        let services = self.services.iter().map(|service| {
            let name = service.as_str();
            (name, COMMAND_SERVICES.contains(&name))
        });
        for (name, needs_commands) in wholes.into_iter().chain(services) {
            let status = if serves && (runs_commands || !needs_commands) {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            self.reporter.set_service_status(name, status).await;
        }
    }
}
