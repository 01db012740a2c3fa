//! The tools, read from the descriptors: names, time limits, and the rules of their fields. Nothing
//! about a tool is written down twice.

mod json;
mod rules;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value};

pub(crate) use self::rules::Checked;
use self::rules::Rules;
use crate::{
    api::{self, v1},
    daemon::{config::keys::Role, error::Error},
};

/// All tools, and all methods that the daemon knows.
#[derive(Debug)]
pub(crate) struct Catalog {
    tools: HashMap<String, ToolSpec>,
    messages: HashMap<String, Rules>,
    /// Each with the role that it needs.
    methods: BTreeMap<String, Role>,
}

/// What the descriptors say about one tool.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    /// Its options.
    pub(crate) options: v1::ToolOptions,
    rules: Rules,
    request: MessageDescriptor,
    response: MessageDescriptor,
}

// === impl Catalog ===

impl Catalog {
    /// Reads the descriptors that the daemon was built with.
    pub(crate) fn load() -> Result<Self, Error> {
        let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).map_err(Error::internal)?;
        let mut tools = HashMap::new();
        let mut messages = HashMap::new();
        let mut methods = BTreeMap::new();
        for service in pool.services() {
            for method in service.methods() {
                let path = format!("{}/{}", service.full_name(), method.name());
                methods.insert(path, access(&pool, &method));
                let input = method.input();
                if let Some(options) = tool_options(&pool, &method) {
                    let rules = Rules::of(&pool, &input);
                    let spec = ToolSpec {
                        options,
                        rules,
                        request: input,
                        response: method.output(),
                    };
                    tools.insert(spec.options.name.clone(), spec);
                } else {
                    messages.insert(input.full_name().to_owned(), Rules::of(&pool, &input));
                }
            }
        }
        Ok(Self {
            tools,
            messages,
            methods,
        })
    }

    /// The tool of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        self.tools.get(name)
    }

    /// The names of all tools.
    #[cfg(test)]
    pub(crate) fn tools(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// Every method of `jig.v1`, as `jig.v1.ToolService/Run`.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// The role that the method of this path needs: `jig.v1.ToolService/Run`.
    pub(crate) fn access(&self, path: &str) -> Option<Role> {
        self.methods.get(path).copied()
    }

    /// Checks a request of a method that is not a tool, named by its full name, and fills in
    /// defaults.
    pub(crate) fn look_at<T: Message + Default>(
        &self,
        message: &str,
        request: T,
    ) -> Result<Checked<T>, Error> {
        match self.messages.get(message) {
            Some(rules) => rules.check(request),
            None => Err(Error::internal(format!("no method takes {message}"))),
        }
    }

    /// As [`Catalog::look_at`], where nothing else is to be found wrong with it.
    pub(crate) fn check<T: Message + Default>(
        &self,
        message: &str,
        request: T,
    ) -> Result<T, Error> {
        let checked = self.look_at(message, request)?;
        if checked.violations.is_empty() {
            Ok(checked.request)
        } else {
            Err(Error::invalid(checked.violations))
        }
    }
}

// === impl ToolSpec ===

impl ToolSpec {
    /// Checks a request of this tool, and fills in defaults.
    pub(crate) fn check<T: Message + Default>(&self, request: T) -> Result<Checked<T>, Error> {
        self.rules.check(request)
    }

    /// Reads parameters by their names as a request of this tool.
    pub(crate) fn read<T: Message + Default>(
        &self,
        parameters: &Map<String, Value>,
    ) -> Result<T, Error> {
        let message = json::read(&self.request, parameters).map_err(Error::invalid)?;
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

fn tool_options(pool: &DescriptorPool, method: &MethodDescriptor) -> Option<v1::ToolOptions> {
    let extension = pool.get_extension_by_name("jig.v1.tool")?;
    let options = method.options();
    let value = options
        .has_extension(&extension)
        .then(|| options.get_extension(&extension))?;
    value.as_message()?.transcode_to().ok()
}

/// The role that a method needs. One that does not say is for administrators.
fn access(pool: &DescriptorPool, method: &MethodDescriptor) -> Role {
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
