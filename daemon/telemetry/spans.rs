//! OpenTelemetry spans. A call has three, nested: the RPC, the tool, the process.
//!
//! They use the OpenTelemetry API and not `tracing`: each span is started and ended in one place,
//! has exactly the attributes of the semantic conventions, and is separate from the logs. Dropping
//! an open span means that its call was abandoned.

use std::borrow::Cow;

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _},
};
use opentelemetry_sdk::trace::SdkTracer;

use super::semconv;

/// Longest value of a text attribute. The SDK has no such limit.
const MAX_ATTRIBUTE_BYTES: usize = 4096;

/// An open span. It ends by [`OtelSpan::end`], or when it is dropped.
#[derive(Debug)]
pub(crate) struct OtelSpan {
    context: Context,
    ended: bool,
}

impl OtelSpan {
    /// Starts a span as a child of `parent`.
    pub(crate) fn start(
        tracer: &SdkTracer,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        attributes: Vec<KeyValue>,
        parent: &Context,
    ) -> Self {
        Self::start_linked(tracer, name, kind, attributes, parent, None)
    }

    /// As [`Self::start`], with a link to another span.
    pub(crate) fn start_linked(
        tracer: &SdkTracer,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        attributes: Vec<KeyValue>,
        parent: &Context,
        link: Option<SpanContext>,
    ) -> Self {
        let mut builder = tracer.span_builder(name).with_kind(kind).with_attributes(attributes);
        if let Some(link) = link {
            builder = builder.with_links(vec![Link::with_context(link)]);
        }
        let span = builder.start_with_context(tracer, parent);
        Self { context: parent.with_span(span), ended: false }
    }

    /// The context for child spans, and for the environment of child processes.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Whether attributes have an effect: the span is sampled, and exported.
    pub(crate) fn is_recording(&self) -> bool {
        self.context.span().is_recording()
    }

    pub(crate) fn set(&self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.context.span().set_attribute(KeyValue::new(key, value));
    }

    /// Sets a text attribute, truncated to [`MAX_ATTRIBUTE_BYTES`].
    pub(crate) fn set_text(&self, key: &'static str, value: &str) {
        self.set(key, truncate(value).to_owned());
    }

    /// Marks the span as failed.
    pub(crate) fn fail(&self, error_type: &'static str) {
        self.fail_with(error_type, "");
    }

    /// Marks the span as failed, with a description for people.
    pub(crate) fn fail_with(&self, error_type: &'static str, description: &str) {
        self.set(semconv::ERROR_TYPE, error_type);
        let status = Status::error(truncate(description).to_owned());
        self.context.span().set_status(status);
    }

    pub(crate) fn end(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.context.span().end();
        }
    }
}

fn truncate(value: &str) -> &str {
    let end = value.floor_char_boundary(MAX_ATTRIBUTE_BYTES);
    value.get(..end).unwrap_or_default()
}

impl Drop for OtelSpan {
    fn drop(&mut self) {
        self.finish();
    }
}
