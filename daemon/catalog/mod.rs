//! The tools, read from the descriptors: names, time limits, and the rules of their fields. Nothing
//! about a tool is written down twice. Beside them, those that a configuration adds.

mod comments;
pub(crate) mod custom;
pub(crate) mod definition;
mod json;
mod measure;
pub(crate) mod nearest;
mod recorded;
pub(crate) mod render;
mod rules;
mod schema;
mod told;
mod view;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value};

use self::{
    comments::{Comments, first_sentence},
    custom::{CustomTool, RUN},
    definition::{Definition, Hints},
    rules::{Looked, Rules},
    schema::{of_request, of_response},
    view::View,
};
pub(crate) use self::{
    json::{MAP as JSON_MAP, entries_of as json_entries, number_of},
    measure::{LARGEST_REQUEST, MOST_VALUES, Measure},
    recorded::shortened,
    told::{Reading, Text, Told},
};
use crate::{
    api::{self, v1},
    daemon::{
        config::{self, keys::Role},
        error::{Error, Violation},
    },
};

/// All tools, those of the configuration among them, and all methods that the daemon knows.
#[derive(Debug)]
pub(crate) struct Catalog {
    pool: DescriptorPool,
    tools: BTreeMap<String, ToolSpec>,
    custom: BTreeMap<&'static str, &'static CustomTool>,
    messages: HashMap<String, Arc<Rules>>,
    methods: BTreeMap<String, Method>,
    /// Read once somebody wants to know.
    comments: OnceLock<Comments>,
}

/// What the descriptors say about one method.
#[derive(Debug)]
struct Method {
    access: Access,
    measure: Arc<Measure>,
}

/// What the descriptors say about one tool.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    /// Its options.
    pub(crate) options: v1::ToolOptions,
    /// The role that it needs.
    pub(crate) role: Role,
    rules: Arc<Rules>,
    method: MethodDescriptor,
    response: MessageDescriptor,
    view: View,
}

/// A request whose fields keep their rules, as far as each of them can be looked at by itself.
#[derive(Debug)]
pub(crate) struct Checked<T> {
    /// The request, with the defaults of what was not given.
    pub(crate) request: T,
    /// What was given, as JSON, without what may be secret.
    pub(crate) params: serde_json::Value,
    /// Fields that break their rules.
    pub(crate) violations: Vec<Violation>,
    /// What was given, for those who decide about the call, where that was asked for.
    pub(crate) given: Option<Given>,
    /// What was given, encoded: for [`Catalog::given_before`].
    pub(crate) encoded: Vec<u8>,
}

/// What was given, field by field, and nothing else.
#[derive(Debug)]
pub(crate) struct Given {
    rules: Arc<Rules>,
    message: DynamicMessage,
}

/// Who may call a method.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// The role that it needs.
    pub(crate) role: Role,
    /// Whether its answer is a stream, which goes on.
    pub(crate) streams: bool,
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
                let access =
                    Access { role: role(&pool, &method), streams: method.is_server_streaming() };
                let input = method.input();
                let rules = Rules::of(&pool, &input);
                let measure = Arc::new(Measure::of(&method, &rules, counts(&pool, &method)));
                methods.insert(path, Method { access, measure });
                if let Some(options) = tool_options(&pool, &method) {
                    let spec = ToolSpec {
                        options,
                        role: access.role,
                        rules: Arc::new(rules),
                        view: View::of(&Rules::of(&pool, &method.output())),
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
            custom: BTreeMap::new(),
            messages,
            methods,
            comments: OnceLock::new(),
        })
    }

    /// The same, with the tools of a configuration beside those of the contract. Answers every problem; what is
    /// in the configuration stays for as long as the process lives.
    pub(crate) fn with_tools(
        mut self,
        tools: Vec<config::tools::Tool>,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        for tool in tools {
            let name = tool.name.clone();
            let tool = match (self.tools.get(&name), self.tools.get(RUN)) {
                (None, Some(run)) => CustomTool::new(tool, &run.options),
                _ => Err("the contract has a tool of this name".to_owned()),
            };
            match tool {
                Ok(tool) => {
                    self.custom.insert(tool.name(), Box::leak(Box::new(tool)));
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
    pub(crate) fn tools(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// Whether there is a tool of this name, in the contract or in the configuration.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.contains_key(name) || self.custom.contains_key(name)
    }

    /// The tool of the configuration of this name.
    pub(crate) fn custom(&self, name: &str) -> Option<&'static CustomTool> {
        self.custom.get(name).copied()
    }

    /// The tools of the configuration, by their names.
    pub(crate) fn customs(&self) -> impl Iterator<Item = &'static CustomTool> {
        self.custom.values().copied()
    }

    /// What models are told of the tool of this name, if there is one.
    pub(crate) fn definition(&self, name: &str) -> Option<Definition> {
        let comments = self.comments.get_or_init(|| Comments::of(&self.pool));
        if let Some(tool) = self.custom(name) {
            let output = self.definition(RUN).and_then(|run| run.output);
            return Some(tool.definition(output));
        }
        let ToolSpec { options, rules, method, response, .. } = self.tool(name)?;
        let answer = Rules::of(&self.pool, response);
        Some(Definition {
            name: options.name.clone(),
            title: options.title.clone(),
            description: match options.description.as_str() {
                "" => first_sentence(comments.method(method)).to_owned(),
                description => description.to_owned(),
            },
            input: of_request(rules, comments),
            output: Some(of_response(&answer, comments)),
            hints: Hints::of(options),
            risk: options.risk(),
            requires_approval: false,
        })
    }

    /// What models are shown of an answer of the tool of this name.
    pub(crate) fn shown(&self, name: &str, data: &Map<String, Value>) -> Map<String, Value> {
        let of_custom = || self.custom(name).and_then(|_| self.tool(RUN));
        match self.tool(name).or_else(of_custom) {
            Some(spec) => spec.view.shown(data),
            None => data.clone(),
        }
    }

    /// The risk of the tool of this name.
    pub(crate) fn risk(&self, name: &str) -> v1::Risk {
        let of_contract = || self.tool(name).map(|tool| tool.options.risk());
        let risk = self.custom(name).map(CustomTool::risk).or_else(of_contract);
        risk.unwrap_or_default()
    }

    /// What is said of the name of a tool that there is not.
    pub(crate) fn no_tool(&self, name: &str) -> String {
        let known: Vec<_> = self.tools().chain(self.custom.keys().copied()).collect();
        format!("there is {}", nearest::no_tool(name, &known))
    }

    /// Every method of `jig.v1`, as `jig.v1.ToolService/Run`.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// Who may call the method of this path: `jig.v1.ToolService/Run`.
    pub(crate) fn access(&self, path: &str) -> Option<Access> {
        self.methods.get(path).map(|method| method.access)
    }

    /// What requests of the method of this path may be.
    pub(crate) fn measure(&self, path: &str) -> Option<&Arc<Measure>> {
        self.methods.get(path).map(|method| &method.measure)
    }

    /// Checks a request of a method that is not a tool, named by its full name, and fills in
    /// defaults. `keeps` what was given, too, for those who decide about it.
    pub(crate) fn look_at<T: Message + Default>(
        &self,
        message: &str,
        request: T,
        keeps: bool,
    ) -> Result<Checked<T>, Error> {
        match self.messages.get(message) {
            Some(rules) => check(rules, request, keeps),
            None => Err(Error::internal(format!("no method takes {message}"))),
        }
    }

    /// What a message says that need not be a request by itself, named by its full name, for those who
    /// decide about it.
    pub(crate) fn given(&self, message: &str, said: &impl Message) -> Result<Given, Error> {
        let descriptor = self.pool.get_message_by_name(message);
        let descriptor =
            descriptor.ok_or_else(|| Error::internal(format!("there is no {message}")))?;
        let rules = Rules::of(&self.pool, &descriptor);
        Ok(Given { message: rules.reflect(said)?, rules: Arc::new(rules) })
    }

    /// What a request says that was checked before, of a tool or by the full name of its `message`.
    pub(crate) fn given_before(
        &self,
        tool: &str,
        message: Option<&str>,
        encoded: &[u8],
    ) -> Result<Given, Error> {
        let rules = match message {
            Some(message) => self.messages.get(message),
            None => self.tool(tool).map(|spec| &spec.rules),
        };
        let rules = rules.ok_or_else(|| Error::internal(format!("no requests of {tool}")))?;
        Ok(Given { message: rules.decode(encoded)?, rules: Arc::clone(rules) })
    }

    /// As [`Catalog::look_at`], where nothing else is to be found wrong with it.
    pub(crate) fn check<T: Message + Default>(
        &self,
        message: &str,
        request: T,
    ) -> Result<T, Error> {
        let checked = self.look_at(message, request, false)?;
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
    pub(crate) fn check<T: Message + Default>(
        &self,
        request: T,
        keeps: bool,
    ) -> Result<Checked<T>, Error> {
        check(&self.rules, request, keeps)
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

impl Given {
    /// What was given, for those who decide about it. `plain` says how a path reads without detours, if it
    /// is one of the workspace; `reading`, how another text reads.
    pub(crate) fn tell(
        &self,
        plain: impl Fn(&str) -> Option<String>,
        reading: Option<Reading>,
    ) -> Told {
        Told::new(&self.rules, &self.message, plain, reading)
    }

    /// Bytes that it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.message.encoded_len()
    }
}

fn check<T: Message + Default>(
    rules: &Arc<Rules>,
    request: T,
    keeps: bool,
) -> Result<Checked<T>, Error> {
    let Looked { request, params, violations, given, encoded } = rules.check(request, keeps)?;
    Ok(Checked {
        given: given.map(|message| Given { rules: Arc::clone(rules), message }),
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
fn counts(pool: &DescriptorPool, method: &MethodDescriptor) -> bool {
    let declared = pool
        .get_extension_by_name("jig.v1.counts")
        .and_then(|extension| method.options().get_extension(&extension).as_bool());
    declared == Some(true) || tool_options(pool, method).is_some()
}

/// The role that a method needs. One that does not say is for administrators.
fn role(pool: &DescriptorPool, method: &MethodDescriptor) -> Role {
    let declared = pool
        .get_extension_by_name("jig.v1.access")
        .filter(|extension| method.options().has_extension(extension))
        .and_then(|extension| method.options().get_extension(&extension).as_enum_number());
    match declared.map(v1::Role::try_from) {
        Some(Ok(v1::Role::Read)) => Role::Read,
        Some(Ok(v1::Role::Invoke)) => Role::Invoke,
        None if tool_options(pool, method).is_some() => Role::Invoke,
        None | Some(Ok(v1::Role::Admin | v1::Role::Unspecified) | Err(_)) => Role::Admin,
    }
}
