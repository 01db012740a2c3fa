//! Logging to standard error, as text for people or as one JSON object per line, and to a collector.
//!
//! Messages are constant; variable data is in fields. The log lines of a call carry its trace id,
//! so that they can be found from its spans.

use std::{fmt, io, io::IsTerminal as _, time::SystemTime};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer, filter::Targets, fmt as text, layer::Context, prelude::*, registry::LookupSpan,
};

use super::log_export::{self, ExportLayer};

/// Fields that are lists of strings. `tracing` has no list type, so they arrive as Debug text.
const LIST_FIELDS: [&str; 1] = ["addresses"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Text if standard error is a terminal, otherwise JSON.
    pub(crate) fn for_stderr() -> Self {
        if io::stderr().is_terminal() { Self::Text } else { Self::Json }
    }
}

/// Starts logging. A second call in the same process has no effect.
pub(crate) fn init(format: LogFormat, level: Level) {
    // These log ordinary events of a server as warnings, such as a client that disconnects or a
    // rejected call.
    let filter = Targets::new()
        .with_default(Level::WARN)
        .with_target("jig", level)
        .with_target("h2", Level::ERROR)
        .with_target("hyper", Level::ERROR)
        .with_target("rmcp", Level::ERROR);

    let exported = ExportLayer.with_filter(log_export::filter(level));
    let registry = tracing_subscriber::registry().with(exported);
    let started = match format {
        LogFormat::Text => registry
            .with(
                text::layer()
                    .with_writer(io::stderr)
                    .with_ansi(io::stderr().is_terminal())
                    .with_target(false)
                    .with_filter(filter),
            )
            .try_init(),
        LogFormat::Json => registry.with(JsonLayer.with_filter(filter)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging is started already");
    }
}

/// Writes each event as a JSON object, with the fields of its spans.
struct JsonLayer;

/// Fields of a span or an event.
struct JsonFields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = JsonFields(Map::new());
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = JsonFields(Map::new());
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<JsonFields>() {
                line.0.extend(fields.0.clone());
            }
        }
        event.record(&mut line);

        // Inserted last, so that no field of the same name replaces them.
        let time = rfc3339_micros(SystemTime::now());
        line.0.insert("timestamp".to_owned(), time.into());
        line.0.insert("level".to_owned(), event.metadata().level().as_str().into());

        // An error of the log itself cannot be reported.
        let _unwritten = serde_json::to_vec(&line.0).map(|mut bytes| {
            bytes.push(b'\n');
            io::Write::write_all(&mut io::stderr().lock(), &bytes)
        });
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        // The Debug format of a list of strings is JSON, unless they contain unprintable
        // characters.
        let is_list = LIST_FIELDS.contains(&field.name());
        let list = is_list.then(|| serde_json::from_str(&text).ok()).flatten();
        let value = list.unwrap_or(Value::String(text));
        self.0.insert(field.name().to_owned(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Formats a time as RFC 3339 in UTC, with microseconds.
pub(crate) fn rfc3339_micros(time: SystemTime) -> String {
    let mut text = prost_types::Timestamp::from(time);
    text.nanos -= text.nanos % 1000;
    text.to_string()
}
