//! The tool catalog: names, time limits, roles and field rules of all tools.
//!
//! The protos are the only source for canonical tools. The catalog reads their descriptors at
//! start-up and adds the tools that the configuration defines.

mod comments;
pub(crate) mod custom;
pub(crate) mod definition;
pub(crate) mod json;
mod policy_text;
pub(crate) mod proto_json_schema;
mod redact;
pub(crate) mod render;
mod request_limits;
mod response_view;
mod rules;
mod schema;
pub(crate) mod suggest;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value};

use self::{
    comments::{ProtoComments, first_sentence},
    custom::{CustomTool, RUN_TOOL},
    definition::{ToolDefinition, ToolHints},
    response_view::ResponseView,
    rules::{MessageRules, MessageValidation},
    schema::{request_schema, response_schema},
};
pub(crate) use self::{
    json::{MAP_EXPECTED, map_from_entries, parse_number},
    policy_text::{CanonicalText, PolicyText, PolicyView},
    redact::{bound_to, truncate_params},
    request_limits::{MAX_PARAM_VALUES, MAX_REQUEST_BYTES, RequestLimits},
};
use crate::{
    api::{self, v1},
    daemon::{
        config::{self, keys::AccessRole},
        error::{Error, Violation},
    },
};

/// All tools, of the contract and of the configuration, and all methods of the daemon.
#[derive(Debug)]
pub(crate) struct Catalog {
    pool: DescriptorPool,
    tools: BTreeMap<String, ToolSpec>,
    custom_tools: BTreeMap<&'static str, &'static CustomTool>,
    message_rules: HashMap<String, Arc<MessageRules>>,
    methods: BTreeMap<String, MethodSpec>,
    /// Read on first use.
    comments: OnceLock<ProtoComments>,
}

/// What the descriptors define for a method.
#[derive(Debug)]
struct MethodSpec {
    access: MethodAccess,
    request_limits: Arc<RequestLimits>,
}

/// What the descriptors define for a tool.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    pub(crate) options: v1::ToolOptions,
    /// The role that a caller needs.
    pub(crate) role: AccessRole,
    rules: Arc<MessageRules>,
    method: MethodDescriptor,
    response: MessageDescriptor,
    response_rules: MessageRules,
    view: ResponseView,
}

/// A request after the validation of its fields, each by itself.
#[derive(Debug)]
pub(crate) struct RequestValidation<T> {
    /// The request, with defaults filled in.
    pub(crate) request: T,
    /// The given fields as JSON, without those that may be secret.
    pub(crate) params: serde_json::Value,
    /// Fields that are invalid.
    pub(crate) violations: Vec<Violation>,
    /// The given fields, for policy decisions. Present with `keep_explicit`.
    pub(crate) explicit: Option<ExplicitParams>,
    /// The given fields, encoded. [`Catalog::decode_explicit_params`] reads them.
    pub(crate) encoded: Vec<u8>,
}

/// The given fields of a request, without defaults.
#[derive(Debug)]
pub(crate) struct ExplicitParams {
    rules: Arc<MessageRules>,
    message: DynamicMessage,
}

/// Requirements for the callers of a method.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MethodAccess {
    /// The role that a caller needs.
    pub(crate) role: AccessRole,
    /// Whether the response is a stream.
    pub(crate) server_streaming: bool,
}

// === impl Catalog ===

impl Catalog {
    /// Reads the descriptors that the daemon was built with.
    pub(crate) fn load() -> Result<Self, Error> {
        let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).map_err(Error::internal)?;

        let mut tools = BTreeMap::new();
        let mut message_rules = HashMap::new();
        let mut methods = BTreeMap::new();

        for service in pool.services() {
            for method in service.methods() {
                let path = format!("{}/{}", service.full_name(), method.name());
                let access = MethodAccess {
                    role: required_role(&pool, &method),
                    server_streaming: method.is_server_streaming(),
                };
                let input = method.input();
                let rules = MessageRules::from_descriptor(&pool, &input);
                let rate_limited = is_rate_limited(&pool, &method);
                let request_limits =
                    Arc::new(RequestLimits::from_method(&method, &rules, rate_limited));
                methods.insert(path, MethodSpec { access, request_limits });

                if let Some(options) = tool_options(&pool, &method) {
                    let response = method.output();
                    let response_rules = MessageRules::from_descriptor(&pool, &response);
                    let spec = ToolSpec {
                        options,
                        role: access.role,
                        rules: Arc::new(rules),
                        view: ResponseView::from_rules(&response_rules),
                        response_rules,
                        response,
                        method,
                    };
                    tools.insert(spec.options.name.clone(), spec);
                } else {
                    message_rules.insert(input.full_name().to_owned(), Arc::new(rules));
                }
            }
        }

        Ok(Self {
            pool,
            tools,
            custom_tools: BTreeMap::new(),
            message_rules,
            methods,
            comments: OnceLock::new(),
        })
    }

    /// Adds the tools of a configuration. Returns every problem if there is any.
    ///
    /// The definitions are leaked: they live as long as the process.
    pub(crate) fn with_custom_tools(
        mut self,
        tools: Vec<config::tools::ToolConfig>,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        for tool in tools {
            let name = tool.name.clone();
            let tool = match (self.tools.get(&name), self.tools.get(RUN_TOOL)) {
                (None, Some(run)) => CustomTool::new(tool, &run.options),
                _ => Err("the contract has a tool of this name".to_owned()),
            };
            match tool {
                Ok(tool) => {
                    self.custom_tools.insert(tool.name(), Box::leak(Box::new(tool)));
                }
                Err(problem) => problems.push(format!("tools: {name:?}: {problem}")),
            }
        }

        if problems.is_empty() { Ok(self) } else { Err(problems) }
    }

    /// The canonical tool of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.get(name)
    }

    /// The names of the canonical tools, sorted.
    pub(crate) fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// Whether the contract or the configuration has a tool of this name.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.contains_key(name) || self.custom_tools.contains_key(name)
    }

    /// The custom tool of this name.
    pub(crate) fn custom_tool(&self, name: &str) -> Option<&'static CustomTool> {
        self.custom_tools.get(name).copied()
    }

    /// The custom tools, sorted by name.
    pub(crate) fn custom_tools(&self) -> impl Iterator<Item = &'static CustomTool> {
        self.custom_tools.values().copied()
    }

    /// The definition of a tool for models.
    pub(crate) fn definition(&self, name: &str) -> Option<ToolDefinition> {
        let comments = self.comments.get_or_init(|| ProtoComments::from_pool(&self.pool));
        if let Some(tool) = self.custom_tool(name) {
            let output = self.definition(RUN_TOOL).and_then(|run| run.output_schema);
            return Some(tool.definition(output));
        }

        let ToolSpec { options, rules, method, response, .. } = self.tool(name)?;
        let response_rules = MessageRules::from_descriptor(&self.pool, response);
        Some(ToolDefinition {
            name: options.name.clone(),
            title: options.title.clone(),
            description: match options.description.as_str() {
                "" => first_sentence(comments.method(method)).to_owned(),
                description => description.to_owned(),
            },
            input_schema: request_schema(rules, comments),
            output_schema: Some(response_schema(&response_rules, comments)),
            hints: ToolHints::from_options(options),
            risk: options.risk(),
            requires_approval: false,
        })
    }

    /// The fields of a tool's response that models see.
    pub(crate) fn model_view(&self, name: &str, data: &Map<String, Value>) -> Map<String, Value> {
        // A custom tool responds like `run`.
        let run_spec = || self.custom_tool(name).and_then(|_| self.tool(RUN_TOOL));
        match self.tool(name).or_else(run_spec) {
            Some(spec) => spec.view.filter(data),
            None => data.clone(),
        }
    }

    /// The risk of a tool.
    pub(crate) fn risk(&self, name: &str) -> v1::Risk {
        let contract_risk = || self.tool(name).map(|tool| tool.options.risk());
        self.custom_tool(name).map(CustomTool::risk).or_else(contract_risk).unwrap_or_default()
    }

    /// The error message for an unknown tool, with a suggestion.
    pub(crate) fn unknown_tool_message(&self, name: &str) -> String {
        let known: Vec<_> = self.tool_names().chain(self.custom_tools.keys().copied()).collect();
        suggest::unknown_tool_message(name, &known)
    }

    /// The descriptors of the contract.
    pub(crate) fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    /// The paths of all methods of `jig.v1`, such as `jig.v1.ToolService/Run`.
    pub(crate) fn method_paths(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// The requirements for the callers of the method at `path`, such as `jig.v1.ToolService/Run`.
    pub(crate) fn method_access(&self, path: &str) -> Option<MethodAccess> {
        self.methods.get(path).map(|method| method.access)
    }

    /// The limits on requests of the method at `path`.
    pub(crate) fn request_limits(&self, path: &str) -> Option<&Arc<RequestLimits>> {
        self.methods.get(path).map(|method| &method.request_limits)
    }

    /// Validates a request of a method that is no tool, and fills in defaults.
    ///
    /// `message` is the full name of the request. `keep_explicit` keeps the given fields for policy
    /// decisions.
    pub(crate) fn validate<T: Message + Default>(
        &self,
        message: &str,
        request: T,
        keep_explicit: bool,
    ) -> Result<RequestValidation<T>, Error> {
        match self.message_rules.get(message) {
            Some(rules) => validate(rules, request, keep_explicit),
            None => Err(Error::internal(format!("no method takes {message}"))),
        }
    }

    /// The fields of a message, for policy decisions. `message` is its full name; it need not be a
    /// request.
    pub(crate) fn explicit_params(
        &self,
        message: &str,
        value: &impl Message,
    ) -> Result<ExplicitParams, Error> {
        let descriptor = self
            .pool
            .get_message_by_name(message)
            .ok_or_else(|| Error::internal(format!("there is no {message}")))?;
        let rules = MessageRules::from_descriptor(&self.pool, &descriptor);
        Ok(ExplicitParams { message: rules.reflect(value)?, rules: Arc::new(rules) })
    }

    /// Decodes the given fields of a request that was validated before. `message` is its full name,
    /// if it is not the request of `tool`.
    pub(crate) fn decode_explicit_params(
        &self,
        tool: &str,
        message: Option<&str>,
        encoded: &[u8],
    ) -> Result<ExplicitParams, Error> {
        let rules = match message {
            Some(message) => self.message_rules.get(message),
            None => self.tool(tool).map(|spec| &spec.rules),
        }
        .ok_or_else(|| Error::internal(format!("no requests of {tool}")))?;
        Ok(ExplicitParams { message: rules.decode(encoded)?, rules: Arc::clone(rules) })
    }

    /// Like [`Catalog::validate`], but returns violations as an error.
    pub(crate) fn check<T: Message + Default>(
        &self,
        message: &str,
        request: T,
    ) -> Result<T, Error> {
        let validated = self.validate(message, request, false)?;
        if !validated.violations.is_empty() {
            return Err(Error::invalid(validated.violations));
        }
        Ok(validated.request)
    }
}

// === impl ToolSpec ===

impl ToolSpec {
    /// Validates a request of this tool, and fills in defaults. `keep_explicit` keeps the given
    /// fields for policy decisions.
    pub(crate) fn validate<T: Message + Default>(
        &self,
        request: T,
        keep_explicit: bool,
    ) -> Result<RequestValidation<T>, Error> {
        validate(&self.rules, request, keep_explicit)
    }

    /// Converts parameters by name to a request of this tool.
    pub(crate) fn read<T: Message + Default>(
        &self,
        parameters: &Map<String, Value>,
    ) -> Result<T, Error> {
        let message = json::read(&self.rules, parameters).map_err(Error::invalid)?;
        message.transcode_to().map_err(Error::internal)
    }

    /// Converts a response of this tool to fields by name.
    pub(crate) fn write<T: Message>(&self, response: &T) -> Result<Map<String, Value>, Error> {
        let bytes = response.encode_to_vec();
        let message = DynamicMessage::decode(self.response.clone(), bytes.as_slice())
            .map_err(Error::internal)?;
        json::write(&message)
    }

    /// A response of this tool as JSON, with the size in place of fields that may be secret.
    pub(crate) fn redacted_response<T: Message>(&self, response: &T) -> Result<Value, Error> {
        let message = self.response_rules.decode(&response.encode_to_vec())?;
        let json = json::write(&message)?.into();
        Ok(self.response_rules.redact_file_content(&message, json))
    }

    /// The time limit of a call that names none.
    pub(crate) fn default_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.options.default_timeout_sec))
    }
}

// === impl ExplicitParams ===

impl ExplicitParams {
    /// The given fields as policy rules match them.
    ///
    /// `normalize_path` normalizes a path of the workspace. `canonical` is the canonical form of a
    /// field.
    pub(crate) fn policy_view(
        &self,
        normalize_path: impl Fn(&str) -> Option<String>,
        canonical: Option<CanonicalText>,
    ) -> PolicyView {
        PolicyView::new(&self.rules, &self.message, normalize_path, canonical)
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        self.message.encoded_len()
    }
}

fn validate<T: Message + Default>(
    rules: &Arc<MessageRules>,
    request: T,
    keep_explicit: bool,
) -> Result<RequestValidation<T>, Error> {
    let MessageValidation { request, params, violations, explicit, encoded } =
        rules.validate(request, keep_explicit)?;
    Ok(RequestValidation {
        explicit: explicit.map(|message| ExplicitParams { rules: Arc::clone(rules), message }),
        request,
        params,
        violations,
        encoded,
    })
}

fn tool_options(pool: &DescriptorPool, method: &MethodDescriptor) -> Option<v1::ToolOptions> {
    let extension = pool.get_extension_by_name("jig.v1.tool")?;
    let options = method.options();
    let value = options.has_extension(&extension).then(|| options.get_extension(&extension))?;
    value.as_message()?.transcode_to().ok()
}

/// Whether calls of a method count against the caller's rate limit.
fn is_rate_limited(pool: &DescriptorPool, method: &MethodDescriptor) -> bool {
    let declared = pool
        .get_extension_by_name("jig.v1.rate_limited")
        .and_then(|extension| method.options().get_extension(&extension).as_bool());
    declared == Some(true) || tool_options(pool, method).is_some()
}

/// The role that a method needs. By default, tools need `Invoke` and other methods `Admin`.
fn required_role(pool: &DescriptorPool, method: &MethodDescriptor) -> AccessRole {
    let declared = pool
        .get_extension_by_name("jig.v1.access")
        .filter(|extension| method.options().has_extension(extension))
        .and_then(|extension| method.options().get_extension(&extension).as_enum_number());
    match declared.map(v1::Role::try_from) {
        Some(Ok(v1::Role::Read)) => AccessRole::Read,
        Some(Ok(v1::Role::Invoke)) => AccessRole::Invoke,
        None if tool_options(pool, method).is_some() => AccessRole::Invoke,
        None | Some(Ok(v1::Role::Admin | v1::Role::Unspecified) | Err(_)) => AccessRole::Admin,
    }
}
