//! Health checks (`grpc.health.v1`): of the daemon, of each service, and under two names for
//! probes.
//!
//! | name | SERVING while |
//! |---|---|
//! | `liveness` | the process responds. A restart would not fix anything that makes it not ready |
//! | `readiness`, and the empty name | the daemon takes calls and connections, its state directory
//! exists, and commands can run |
//! | a service | the same; commands count only for services that run them |

use std::sync::Arc;

use tokio::sync::Mutex;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::daemon::http::health::{LIVENESS, READINESS};

/// Services that run commands.
const COMMAND_SERVICES: [&str; 4] =
    ["jig.v1.InvokeService", "jig.v1.JobService", "jig.v1.ProcessService", "jig.v1.ToolService"];

/// Reports health whenever the conditions change.
#[derive(Clone)]
pub(super) struct Health(Arc<Mutex<HealthReport>>);

struct HealthReport {
    reporter: HealthReporter,
    services: Vec<String>,
    conditions: HealthConditions,
}

/// The state of the daemon that health depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HealthConditions {
    pub(super) is_draining: bool,
    pub(super) can_run_commands: bool,
    /// Number of listeners that cannot accept connections.
    pub(super) failing_listeners: usize,
    pub(super) has_lost_state: bool,
}

impl Health {
    /// Starts to report the health of the daemon and of `services`.
    pub(super) async fn start(
        reporter: HealthReporter,
        services: Vec<String>,
        conditions: HealthConditions,
    ) -> Self {
        reporter.set_service_status(LIVENESS, ServingStatus::Serving).await;
        let report = HealthReport { reporter, services, conditions };
        report.publish().await;
        Self(Arc::new(Mutex::new(report)))
    }

    /// Changes the conditions, reports the new health, and returns the result of `change`.
    ///
    /// Concurrent changes are reported one after the other.
    pub(super) async fn update<T>(&self, change: impl FnOnce(&mut HealthConditions) -> T) -> T {
        let mut report = self.0.lock().await;
        let result = change(&mut report.conditions);
        report.publish().await;
        result
    }
}

impl HealthReport {
    async fn publish(&self) {
        let HealthConditions { is_draining, can_run_commands, failing_listeners, has_lost_state } =
            self.conditions;
        let is_serving = !is_draining && failing_listeners == 0 && !has_lost_state;

        let daemon = ["", READINESS].map(|name| (name, true));
        let services = self.services.iter().map(|service| {
            let name = service.as_str();
            (name, COMMAND_SERVICES.contains(&name))
        });
        for (name, needs_commands) in daemon.into_iter().chain(services) {
            let status = if is_serving && (can_run_commands || !needs_commands) {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            self.reporter.set_service_status(name, status).await;
        }
    }
}
