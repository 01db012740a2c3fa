//! The tools, read from the descriptors: names, time limits, and the rules of their fields. Nothing
//! about a tool is written down twice. Beside them, those that a configuration adds.

mod comments;
pub(crate) mod custom;
pub(crate) mod definition;
mod json;
mod policy_text;
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
    json::{MAP_EXPECTED as JSON_MAP, map_from_entries as json_entries, parse_number},
    policy_text::{CanonicalText, PolicyText, PolicyView},
    redact::truncate_params,
    request_limits::{MAX_PARAM_VALUES, MAX_REQUEST_BYTES, RequestLimits},
};
use crate::{
    api::{self, v1},
    daemon::{
        config::{self, keys::AccessRole},
        error::{Error, Violation},
    },
};

/// All tools, those of the configuration among them, and all methods that the daemon knows.
#[derive(Debug)]
pub(crate) struct Catalog {
    pool: DescriptorPool,
    tools: BTreeMap<String, ToolSpec>,
    custom_tools: BTreeMap<&'static str, &'static CustomTool>,
    message_rules: HashMap<String, Arc<MessageRules>>,
    methods: BTreeMap<String, MethodSpec>,
    /// Read once somebody wants to know.
    comments: OnceLock<ProtoComments>,
}

/// What the descriptors say about one method.
#[derive(Debug)]
struct MethodSpec {
    access: MethodAccess,
    request_limits: Arc<RequestLimits>,
}

/// What the descriptors say about one tool.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    /// Its options.
    pub(crate) options: v1::ToolOptions,
    /// The role that it needs.
    pub(crate) role: AccessRole,
    rules: Arc<MessageRules>,
    method: MethodDescriptor,
    response: MessageDescriptor,
    view: ResponseView,
}

/// A request whose fields keep their rules, as far as each of them can be looked at by itself.
#[derive(Debug)]
pub(crate) struct RequestValidation<T> {
    /// The request, with the defaults of what was not given.
    pub(crate) request: T,
    /// What was given, as JSON, without what may be secret.
    pub(crate) params: serde_json::Value,
    /// Fields that break their rules.
    pub(crate) violations: Vec<Violation>,
    /// What was given, for those who decide about the call, where that was asked for.
    pub(crate) explicit: Option<ExplicitParams>,
    /// What was given, encoded: for [`Catalog::given_before`].
    pub(crate) encoded: Vec<u8>,
}

/// What was given, field by field, and nothing else.
#[derive(Debug)]
pub(crate) struct ExplicitParams {
    rules: Arc<MessageRules>,
    message: DynamicMessage,
}

/// Who may call a method.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MethodAccess {
    /// The role that it needs.
    pub(crate) role: AccessRole,
    /// Whether its answer is a stream, which goes on.
    pub(crate) server_streaming: bool,
}

// === impl Catalog ===

impl Catalog {
    /// Reads the descriptors that the daemon was built with.
    pub(crate) fn load() -> Result<Self, Error> {
        let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).map_err(Error::internal)?;
        let mut tools = BTreeMap::new();
        let mut messages = HashMap::new();
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
                let measure = Arc::new(RequestLimits::from_method(
                    &method,
                    &rules,
                    is_rate_limited(&pool, &method),
                ));
                methods.insert(path, MethodSpec { access, request_limits: measure });
                if let Some(options) = tool_options(&pool, &method) {
                    let spec = ToolSpec {
                        options,
                        role: access.role,
                        rules: Arc::new(rules),
                        view: ResponseView::from_rules(&MessageRules::from_descriptor(
                            &pool,
                            &method.output(),
                        )),
                        response: method.output(),
                        method,
                    };
                    tools.insert(spec.options.name.clone(), spec);
                } else {
                    messages.insert(input.full_name().to_owned(), Arc::new(rules));
                }
            }
        }
        Ok(Self {
            pool,
            tools,
            custom_tools: BTreeMap::new(),
            message_rules: messages,
            methods,
            comments: OnceLock::new(),
        })
    }

    /// The same, with the tools of a configuration beside those of the contract. Answers every problem; what is
    /// in the configuration stays for as long as the process lives.
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
        match problems.is_empty() {
            true => Ok(self),
            false => Err(problems),
        }
    }

    /// The tool of the contract of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.get(name)
    }

    /// The names of the tools of the contract, sorted.
    pub(crate) fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// Whether there is a tool of this name, in the contract or in the configuration.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.contains_key(name) || self.custom_tools.contains_key(name)
    }

    /// The tool of the configuration of this name.
    pub(crate) fn custom_tool(&self, name: &str) -> Option<&'static CustomTool> {
        self.custom_tools.get(name).copied()
    }

    /// The tools of the configuration, by their names.
    pub(crate) fn custom_tools(&self) -> impl Iterator<Item = &'static CustomTool> {
        self.custom_tools.values().copied()
    }

    /// What models are told of the tool of this name, if there is one.
    pub(crate) fn definition(&self, name: &str) -> Option<ToolDefinition> {
        let comments = self.comments.get_or_init(|| ProtoComments::from_pool(&self.pool));
        if let Some(tool) = self.custom_tool(name) {
            let output = self.definition(RUN_TOOL).and_then(|run| run.output_schema);
            return Some(tool.definition(output));
        }
        let ToolSpec { options, rules, method, response, .. } = self.tool(name)?;
        let answer = MessageRules::from_descriptor(&self.pool, response);
        Some(ToolDefinition {
            name: options.name.clone(),
            title: options.title.clone(),
            description: match options.description.as_str() {
                "" => first_sentence(comments.method(method)).to_owned(),
                description => description.to_owned(),
            },
            input_schema: request_schema(rules, comments),
            output_schema: Some(response_schema(&answer, comments)),
            hints: ToolHints::from_options(options),
            risk: options.risk(),
            requires_approval: false,
        })
    }

    /// What models are shown of an answer of the tool of this name.
    pub(crate) fn model_view(&self, name: &str, data: &Map<String, Value>) -> Map<String, Value> {
        let of_custom = || self.custom_tool(name).and_then(|_| self.tool(RUN_TOOL));
        match self.tool(name).or_else(of_custom) {
            Some(spec) => spec.view.filter(data),
            None => data.clone(),
        }
    }

    /// The risk of the tool of this name.
    pub(crate) fn risk(&self, name: &str) -> v1::Risk {
        let of_contract = || self.tool(name).map(|tool| tool.options.risk());
        let risk = self.custom_tool(name).map(CustomTool::risk).or_else(of_contract);
        risk.unwrap_or_default()
    }

    /// What is said of the name of a tool that there is not.
    pub(crate) fn unknown_tool_message(&self, name: &str) -> String {
        let known: Vec<_> = self.tool_names().chain(self.custom_tools.keys().copied()).collect();
        format!("there is {}", suggest::unknown_tool_message(name, &known))
    }

    /// Every method of `jig.v1`, as `jig.v1.ToolService/Run`.
    pub(crate) fn method_paths(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// Who may call the method of this path: `jig.v1.ToolService/Run`.
    pub(crate) fn method_access(&self, path: &str) -> Option<MethodAccess> {
        self.methods.get(path).map(|method| method.access)
    }

    /// What requests of the method of this path may be.
    pub(crate) fn request_limits(&self, path: &str) -> Option<&Arc<RequestLimits>> {
        self.methods.get(path).map(|method| &method.request_limits)
    }

    /// Checks a request of a method that is not a tool, named by its full name, and fills in
    /// defaults. `keeps` what was given, too, for those who decide about it.
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

    /// What a message says that need not be a request by itself, named by its full name, for those who
    /// decide about it.
    pub(crate) fn explicit_params(
        &self,
        message: &str,
        value: &impl Message,
    ) -> Result<ExplicitParams, Error> {
        let descriptor = self.pool.get_message_by_name(message);
        let descriptor =
            descriptor.ok_or_else(|| Error::internal(format!("there is no {message}")))?;
        let rules = MessageRules::from_descriptor(&self.pool, &descriptor);
        Ok(ExplicitParams { message: rules.reflect(value)?, rules: Arc::new(rules) })
    }

    /// What a request says that was checked before, of a tool or by the full name of its `message`.
    pub(crate) fn decode_explicit_params(
        &self,
        tool: &str,
        message: Option<&str>,
        encoded: &[u8],
    ) -> Result<ExplicitParams, Error> {
        let rules = match message {
            Some(message) => self.message_rules.get(message),
            None => self.tool(tool).map(|spec| &spec.rules),
        };
        let rules = rules.ok_or_else(|| Error::internal(format!("no requests of {tool}")))?;
        Ok(ExplicitParams { message: rules.decode(encoded)?, rules: Arc::clone(rules) })
    }

    /// As [`Catalog::look_at`], where nothing else is to be found wrong with it.
    pub(crate) fn check<T: Message + Default>(
        &self,
        message: &str,
        request: T,
    ) -> Result<T, Error> {
        let checked = self.validate(message, request, false)?;
        if checked.violations.is_empty() {
            Ok(checked.request)
        } else {
            Err(Error::invalid(checked.violations))
        }
    }
}

// === impl ToolSpec ===

impl ToolSpec {
    /// Checks a request of this tool, and fills in defaults. `keeps` what was given, too, for those who
    /// decide about it.
    pub(crate) fn validate<T: Message + Default>(
        &self,
        request: T,
        keep_explicit: bool,
    ) -> Result<RequestValidation<T>, Error> {
        validate(&self.rules, request, keep_explicit)
    }

    /// Reads parameters by their names as a request of this tool.
    pub(crate) fn read<T: Message + Default>(
        &self,
        parameters: &Map<String, Value>,
    ) -> Result<T, Error> {
        let message = json::read(&self.rules, parameters).map_err(Error::invalid)?;
        message.transcode_to().map_err(Error::internal)
    }

    /// Writes an answer of this tool by the names of its fields.
    pub(crate) fn write<T: Message>(&self, response: &T) -> Result<Map<String, Value>, Error> {
        let bytes = response.encode_to_vec();
        let message = DynamicMessage::decode(self.response.clone(), bytes.as_slice());
        json::write(&message.map_err(Error::internal)?)
    }

    /// How long a call may take that names no limit of its own.
    pub(crate) fn default_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.options.default_timeout_sec))
    }
}

// === impl Given ===

impl ExplicitParams {
    /// What was given, for those who decide about it. `plain` says how a path reads without detours, if it
    /// is one of the workspace; `reading`, how another text reads.
    pub(crate) fn policy_view(
        &self,
        normalize_path: impl Fn(&str) -> Option<String>,
        canonical: Option<CanonicalText>,
    ) -> PolicyView {
        PolicyView::new(&self.rules, &self.message, normalize_path, canonical)
    }

    /// Bytes that it takes, about.
    pub(crate) fn encoded_len(&self) -> usize {
        self.message.encoded_len()
    }
}

fn validate<T: Message + Default>(
    rules: &Arc<MessageRules>,
    request: T,
    keep_explicit: bool,
) -> Result<RequestValidation<T>, Error> {
    let MessageValidation { request, params, violations, explicit: given, encoded } =
        rules.validate(request, keep_explicit)?;
    Ok(RequestValidation {
        explicit: given.map(|message| ExplicitParams { rules: Arc::clone(rules), message }),
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

/// Whether calls of a method count towards the rate of their caller.
fn is_rate_limited(pool: &DescriptorPool, method: &MethodDescriptor) -> bool {
    let declared = pool
        .get_extension_by_name("jig.v1.counts")
        .and_then(|extension| method.options().get_extension(&extension).as_bool());
    declared == Some(true) || tool_options(pool, method).is_some()
}

/// The role that a method needs. One that does not say is for administrators.
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
