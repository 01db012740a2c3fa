//! Joins the fleet of the configuration, and observes its metrics.

use std::{io, sync::Arc};

use opentelemetry::KeyValue;

use super::error::StartError;
use crate::daemon::{
    config::Config,
    fleet::Fleet,
    pipeline::Pipeline,
    telemetry::{metrics::table, semconv},
};

/// Joins the fleet, if the configuration has one. Begins to take jobs from its queues.
pub(super) async fn join(config: &Config, pipeline: &Arc<Pipeline>) -> Result<(), StartError> {
    let Some(config) = config.fleet.clone() else {
        return Ok(());
    };
    let joined = Fleet::join(config, pipeline).await;
    let fleet = joined.map_err(|error| StartError::Io {
        what: "joining the fleet",
        source: io::Error::other(error),
    })?;

    observe(pipeline, &fleet);
    Ok(())
}

fn observe(pipeline: &Pipeline, fleet: &Arc<Fleet>) {
    let metrics = pipeline.telemetry.metrics();
    let queue = |name: &str| KeyValue::new(semconv::FLEET_QUEUE, name.to_owned());

    let queues = fleet.queues().to_vec();
    metrics.observe(&table::FLEET_JOBS, move |observe| {
        for state in &queues {
            for (event, count) in state.event_counts() {
                let event = KeyValue::new(semconv::FLEET_EVENT, event);
                observe(count, &[queue(state.name()), event]);
            }
        }
    });

    let observed = Arc::downgrade(fleet);
    metrics.observe(&table::FLEET_NAME_TAKEN, move |observe| {
        // Its heartbeat keeps it, if it has one.
        let is_taken = observed.upgrade().is_some_and(|fleet| fleet.is_name_taken());
        observe(is_taken.into(), &[]);
    });

    let queues = fleet.queues().to_vec();
    metrics.observe(&table::FLEET_FREE_PLACES, move |observe| {
        for state in &queues {
            observe(state.free_places() as u64, &[queue(state.name())]);
        }
    });
}
