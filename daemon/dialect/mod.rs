//! The tool vocabularies that agents already speak, each over the canonical tools. A dialect says what its
//! tools are called, what they take, and what they answer, as its document does. It touches no files and
//! starts no processes: it calls canonical tools, one after the other, which are checked, permitted, and
//! recorded as though they had been called by their own names.
//!
//! A further one is a file here, and a line in [`ALL`].

mod agentbench;
mod answer;
mod anthropic;
mod claude;
mod cli_agent;
mod dracode;
mod openai;
mod pages;
mod parameter;
mod place;
mod rauskuclaw;
mod said;
mod told;
mod vocabulary;

pub(crate) use self::{
    answer::{Answer, Data, Failure},
    parameter::Params,
    said::Said,
    vocabulary::{Boxed, Call, Dialect, DialectTool, Tools},
};
use crate::daemon::error::Error;

/// All of them.
const ALL: [&Dialect; 7] = [
    &agentbench::DIALECT,
    &dracode::DIALECT,
    &claude::DIALECT,
    &cli_agent::DIALECT,
    &rauskuclaw::DIALECT,
    &openai::DIALECT,
    &anthropic::DIALECT,
];

/// The dialect of this name.
pub(crate) fn find(name: &str) -> Result<&'static Dialect, Error> {
    ALL.into_iter()
        .find(|dialect| dialect.name == name)
        .ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|dialect| dialect.name).collect();
            let text = format!(
                "there is no dialect {name:?}; leave it empty for the tools of this contract, or use one of {}",
                known.join(", ")
            );
            Error::invalid_field("dialect", text)
        })
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Dialect> {
    ALL.into_iter()
}

/// Whether there is a tool of this name in any of them.
pub(crate) fn is_tool(name: &str) -> bool {
    ALL.iter()
        .any(|dialect| dialect.tools.iter().any(|tool| tool.name == name))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        future,
        task::{Context, Waker},
        time::Duration,
    };

    use serde_json::json;

    use super::*;
    use crate::daemon::catalog::Catalog;

    /// Tools that only hear what they are called for.
    #[derive(Default)]
    struct Heard(Vec<Call>);

    impl Heard {
        fn hear<T: Send + 'static>(&mut self, call: Call) -> Boxed<'_, Result<T, Error>> {
            self.0.push(call);
            Box::pin(future::ready(Err(Error::internal("it was only heard"))))
        }
    }

    impl Tools for Heard {
        fn call(&mut self, call: Call) -> Boxed<'_, Result<Data, Error>> {
            self.hear(call)
        }

        fn submit(&mut self, call: Call) -> Boxed<'_, Result<String, Error>> {
            self.hear(call)
        }
    }

    #[test]
    fn c13_tools_have_the_time_that_their_document_gives_them() {
        let file = json!({"path": "a", "content": ""});
        for (tool, params, seconds) in [
            ("Read", json!({"path": "a"}), Some(30)),
            ("Write", file, Some(30)),
            ("Bash", json!({"command": "true"}), Some(120)),
            (
                "Bash",
                json!({"command": "true", "timeout": 300_000}),
                Some(300),
            ),
        ] {
            let dialect = find("claude").unwrap();
            let known = dialect.tool(tool, |_| true).unwrap();
            let params = dialect.read(known, params.as_object().unwrap().clone());
            let mut heard = Heard::default();
            let mut calls = known.call(params.unwrap(), &mut heard);
            // The first call is answered at once.
            let answer = calls.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(answer.is_ready());
            drop(calls);
            let limit = heard.0.first().unwrap().limit;
            assert_eq!(limit, seconds.map(Duration::from_secs), "{tool}");
        }
    }

    #[test]
    fn every_dialect_is_over_tools_that_there_are() {
        let catalog = Catalog::load().unwrap();
        let mut names = BTreeSet::new();
        for dialect in ALL {
            assert!(names.insert(dialect.name), "{} twice", dialect.name);
            assert!(!dialect.tools.is_empty());
            let mut tools = BTreeSet::new();
            for tool in dialect.tools {
                assert!(tools.insert(tool.name), "{} twice", tool.name);
                assert!(!tool.uses.is_empty() && !tool.description.is_empty());
                for name in tool.uses {
                    assert!(catalog.tool(name).is_some(), "{name}");
                }
                let mut parameters = BTreeSet::new();
                for parameter in tool.parameters {
                    assert!(parameters.insert(parameter.name), "{}", parameter.name);
                }
                let definition = dialect.definition(tool, &catalog);
                assert_eq!(definition.input["type"], "object");
            }
        }
        assert!(find("zulu").unwrap_err().message.contains("agentbench"));
    }
}
