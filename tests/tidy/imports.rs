//! Uses of one file by another. Finds the modules from the crate roots, as the compiler does, and
//! reads every path in `use` items and in code. `mod` items are not uses.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::Token;

/// Sources by their path in the repository.
pub(super) type Sources = BTreeMap<String, String>;

/// A file's use of a module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModuleUse {
    /// The using file.
    pub(super) from: String,
    /// The line of the path.
    pub(super) line: usize,
    /// The file of the module.
    pub(super) to: String,
    /// The module's path within its crate: `daemon::sandbox::plan`.
    pub(super) module: String,
}

/// The modules of one or more crates.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// Crate root and path → file.
    files: BTreeMap<ModuleName, String>,
    /// Crate root and path → content.
    contents: BTreeMap<ModuleName, Contents>,
}

/// Returns the tokens of a source with their lines.
type Tokenizer = fn(&str) -> Vec<(usize, Token)>;

/// Crate root, and the path from it.
type ModuleName = (String, Vec<String>);

/// The content of a file without its tests.
#[derive(Debug, Default)]
struct Contents {
    /// Declared modules that are files of their own.
    declared: Vec<String>,
    /// Inline modules, by their paths within the file.
    inline: BTreeSet<Vec<String>>,
    /// Paths in its code.
    paths: Vec<Path>,
}

/// A path of at least two segments, or one in a `use` item.
#[derive(Debug, PartialEq, Eq)]
struct Path {
    line: usize,
    /// The inline module that contains it.
    within: Vec<String>,
    segments: Vec<String>,
}

impl Modules {
    /// Finds the modules of the crates with these roots. `read` returns the tokens that count.
    pub(super) fn find(sources: &Sources, roots: &[&str], read: Tokenizer) -> Self {
        let mut modules = Self::default();
        for root in roots {
            let name = (root.to_string(), Vec::new());
            modules.add(sources, read, (*root).to_owned(), name);
        }
        modules
    }

    /// The files that belong to a crate.
    pub(super) fn files(&self) -> BTreeSet<&str> {
        self.files.values().map(String::as_str).collect()
    }

    /// All uses of a module in another file: of the same crate, or of `library`, which other crates
    /// name `library_name`.
    pub(super) fn module_uses(&self, library: &str, library_name: &str) -> BTreeSet<ModuleUse> {
        let mut module_uses = BTreeSet::new();
        for (name, contents) in &self.contents {
            for path in &contents.paths {
                let Some((crate_root, module)) = self.resolve(name, path, library, library_name)
                else {
                    continue;
                };
                let to = &self.files[&(crate_root, module.clone())];
                if *to != self.files[name] {
                    module_uses.insert(ModuleUse {
                        from: self.files[name].clone(),
                        line: path.line,
                        to: to.clone(),
                        module: module.join("::"),
                    });
                }
            }
        }

        module_uses
    }

    fn add(&mut self, sources: &Sources, read: Tokenizer, file: String, name: ModuleName) {
        let text = sources
            .get(&file)
            .unwrap_or_else(|| panic!("module {} has no file {file}", name.1.join("::")));
        let contents = Contents::read(&read(text));
        let at_root = name.1.is_empty();
        let directory = match file.rsplit_once('/') {
            Some((directory, base)) if at_root || base == "mod.rs" => format!("{directory}/"),
            None if at_root => String::new(),
            _ => format!("{}/", file.trim_end_matches(".rs")),
        };

        for child in &contents.declared {
            let beside = format!("{directory}{child}.rs");
            let below = format!("{directory}{child}/mod.rs");
            let file = if sources.contains_key(&beside) { beside } else { below };
            let mut path = name.1.clone();
            path.push(child.clone());
            self.add(sources, read, file, (name.0.clone(), path));
        }

        for inner in &contents.inline {
            let path = name.1.iter().chain(inner).cloned().collect();
            self.files.insert((name.0.clone(), path), file.clone());
        }

        self.files.insert(name.clone(), file);
        self.contents.insert(name, contents);
    }

    /// The module that a path names, if these crates have it.
    fn resolve(
        &self,
        file: &ModuleName,
        path: &Path,
        library: &str,
        library_name: &str,
    ) -> Option<ModuleName> {
        let (crate_root, file_module) = file;
        let mut module: Vec<String> = file_module.iter().chain(&path.within).cloned().collect();
        let mut crate_root = crate_root.clone();
        let mut segments = path.segments.iter().map(String::as_str).peekable();

        match segments.next()? {
            "crate" => module.clear(),
            "self" => {}
            "super" => {
                module.pop()?;
                while segments.next_if_eq(&"super").is_some() {
                    module.pop()?;
                }
            }
            first if first == library_name => {
                crate_root = library.to_owned();
                module.clear();
            }
            first => {
                // A declared module takes precedence over a crate of the same name.
                module.push(first.to_owned());
                if !self.files.contains_key(&(crate_root.clone(), module.clone())) {
                    return None;
                }
            }
        }

        for segment in segments {
            module.push(segment.to_owned());
            if !self.files.contains_key(&(crate_root.clone(), module.clone())) {
                module.pop();
                break;
            }
        }

        Some((crate_root, module))
    }
}

impl Contents {
    fn read(tokens: &[(usize, Token)]) -> Self {
        let mut contents = Self::default();

        // The inline modules around the position, each with the number of braces open outside it.
        let mut within: Vec<(String, usize)> = Vec::new();
        let mut braces = 0;

        let mut position = 0;
        while position < tokens.len() {
            let rest = &tokens[position..];
            let line = rest[0].0;
            let names = || within.iter().map(|(name, _)| name.clone()).collect();

            match &rest[0].1 {
                Token::Symbol('{') => braces += 1,
                Token::Symbol('}') => {
                    braces -= 1;
                    within.pop_if(|(_, outside)| *outside == braces);
                }
                Token::Word(word) if word == "mod" => match rest {
                    [_, (_, Token::Word(name)), (_, Token::Symbol(';')), ..] => {
                        assert!(within.is_empty(), "`mod {name};` within a module of a file");
                        contents.declared.push(name.clone());
                    }
                    [_, (_, Token::Word(name)), (_, Token::Symbol('{')), ..] => {
                        within.push((name.clone(), braces));
                        let names = within.iter().map(|(name, _)| name.clone()).collect();
                        contents.inline.insert(names);
                        position += 1; // the name; the brace is counted in the next round
                    }
                    _ => {}
                },
                Token::Word(word) if word == "use" && !is_symbol(rest.get(1), '<') => {
                    let mut reader = UseReader { tokens: &rest[1..], position: 0 };
                    for segments in reader.tree() {
                        contents.paths.push(Path { line, within: names(), segments });
                    }
                    position += reader.position;
                }
                // `pub(in super::super)` restricts users; it is not a use.
                Token::Word(word) if word == "in" && is_restriction(tokens, position) => {
                    while !is_symbol(tokens.get(position), ')') {
                        position += 1;
                    }
                }
                Token::Word(first) if starts_a_path(tokens, position) => {
                    let mut segments = vec![first.clone()];
                    while let [(_, Token::Colons), (_, Token::Word(segment)), ..] =
                        &tokens[position + 1..]
                    {
                        segments.push(segment.clone());
                        position += 2;
                    }
                    contents.paths.push(Path { line, within: names(), segments });
                }
                Token::Word(_) | Token::Symbol(_) | Token::Colons => {}
            }

            position += 1;
        }

        contents
    }
}

/// Reads the tree of a `use` item.
struct UseReader<'a> {
    tokens: &'a [(usize, Token)],
    position: usize,
}

impl UseReader<'_> {
    /// All paths of the tree at this position.
    fn tree(&mut self) -> Vec<Vec<String>> {
        let mut path = Vec::new();
        loop {
            match self.next() {
                Some(Token::Word(word)) if word == "as" => self.position += 1, // the alias follows
                Some(Token::Word(word)) => path.push(word),
                Some(Token::Colons) => {}
                Some(Token::Symbol('*')) => {}
                Some(Token::Symbol('{')) => {
                    let mut paths = Vec::new();
                    while !is_symbol(self.tokens.get(self.position), '}') {
                        let before = self.position;
                        for branch in self.tree() {
                            let branch = branch.into_iter().filter(|segment| segment != "self");
                            paths.push(path.iter().cloned().chain(branch).collect());
                        }
                        if is_symbol(self.tokens.get(self.position), ',') {
                            self.position += 1;
                        }
                        let line = self.tokens[before].0;
                        assert!(self.position > before, "line {line}: not a `use` item");
                    }
                    self.position += 1;
                    return paths;
                }
                Some(Token::Symbol(_)) | None => {
                    self.position -= 1;
                    return if path.is_empty() { vec![] } else { vec![path] };
                }
            }
        }
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.position).map(|(_, token)| token);
        self.position += 1;
        token.cloned()
    }
}

fn is_symbol(token: Option<&(usize, Token)>, symbol: char) -> bool {
    token.is_some_and(|(_, token)| *token == Token::Symbol(symbol))
}

fn is_restriction(tokens: &[(usize, Token)], position: usize) -> bool {
    matches!(
        &tokens[..position],
        [.., (_, Token::Word(word)), (_, Token::Symbol('('))] if word == "pub"
    )
}

fn starts_a_path(tokens: &[(usize, Token)], position: usize) -> bool {
    let is_continuation = match &tokens[..position] {
        [.., (_, Token::Colons)] => true,
        // A method, `x.parse::<T>()`, but not the end of a range, `0..limit::MAX`.
        [.., (_, before), (_, Token::Symbol('.'))] => *before != Token::Symbol('.'),
        _ => false,
    };
    !is_continuation && matches!(tokens.get(position + 1), Some((_, Token::Colons)))
}

/// Finds cycles among names that use one another. Reports each cycle once, as a shortest path
/// around it.
pub(super) fn cycles(uses: &BTreeSet<(String, String)>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in uses.iter().filter(|(from, to)| from != to) {
        next.entry(from).or_default().push(to);
    }

    let mut found: Vec<Vec<String>> = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for start in next.keys().copied() {
        if seen.contains(start) {
            continue;
        }
        if let Some(cycle) = shortest_cycle(start, &next) {
            seen.extend(cycle.iter().copied());
            found.push(cycle.into_iter().map(str::to_owned).collect());
        }
    }

    found
}

/// The shortest path from `start` to itself.
fn shortest_cycle<'a>(
    start: &'a str,
    next: &BTreeMap<&'a str, Vec<&'a str>>,
) -> Option<Vec<&'a str>> {
    let mut paths = std::collections::VecDeque::from([vec![start]]);
    let mut reached = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        let last = path.last().expect("a path is not empty");
        for to in next.get(last).into_iter().flatten() {
            if *to == start {
                return Some(path);
            }
            if reached.insert(*to) {
                let mut longer = path.clone();
                longer.push(to);
                paths.push_back(longer);
            }
        }
    }

    None
}

mod tests {
    use super::{super::tokens::without_tests, *};

    fn sources(files: &[(&str, &str)]) -> Sources {
        files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
    }

    fn sample_sources() -> Sources {
        sources(&[
            ("lib.rs", "pub mod api { pub mod v1 { include!(\"x\"); } }\npub mod daemon;"),
            ("main.rs", "fn main() { jig::daemon::run() }"),
            (
                "daemon/mod.rs",
                "mod door;\nmod error;\nmod process;\nmod sys;\npub fn run() { door::open() }",
            ),
            (
                "daemon/door.rs",
                "use crate::{api::v1, daemon::{error::{self, Error}, process as p}};\npub fn open() {}",
            ),
            ("daemon/error.rs", "pub struct Error;"),
            (
                "daemon/process/mod.rs",
                "mod start;\nmod stop;\nuse self::start::go;\nuse super::super::daemon::sys;",
            ),
            (
                "daemon/process/start.rs",
                "pub fn go<'a>() { super::stop::end(self.crate::x, 'x', '\\'') }",
            ),
            (
                "daemon/process/stop.rs",
                "use std::{\n    fmt,\n};\n\nuse super::{\n    start::{\n        go as start,\n    },\n};\npub fn end() {}",
            ),
            // An upward use in code. In comments, strings and tests it does not count.
            (
                "daemon/sys/mod.rs",
                "//! See [`crate::daemon::door`].\nmod call;\nconst A: &str = \"use crate::daemon::door;\";\nconst B: &str = r#\"\"use crate::daemon::door;\"#;\n\
                 /* use crate::daemon::door; /* nested */ */\npub(in crate::daemon) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::daemon::door;\n}\n",
            ),
            (
                "daemon/sys/call.rs",
                "mod inner {\n    use super::super::super::error;\n    fn f() { crate::daemon::door::open::<super::X>() }\n}",
            ),
        ])
    }

    fn found_uses() -> Vec<(String, usize, String)> {
        Modules::find(&sample_sources(), &["lib.rs", "main.rs"], without_tests)
            .module_uses("lib.rs", "jig")
            .into_iter()
            .map(|use_| (use_.from, use_.line, use_.module))
            .collect()
    }

    #[test]
    fn module_uses_finds_exactly_the_uses_of_other_files() {
        let expected = [
            ("daemon/door.rs", 1, "daemon::error"),
            ("daemon/door.rs", 1, "daemon::process"),
            ("daemon/door.rs", 1, "api::v1"),
            ("daemon/mod.rs", 5, "daemon::door"),
            ("daemon/process/mod.rs", 3, "daemon::process::start"),
            ("daemon/process/mod.rs", 4, "daemon::sys"),
            ("daemon/process/start.rs", 1, "daemon::process::stop"),
            ("daemon/process/stop.rs", 5, "daemon::process::start"),
            ("daemon/sys/call.rs", 2, "daemon::error"),
            ("daemon/sys/call.rs", 3, "daemon::door"),
            ("main.rs", 1, "daemon"),
        ];

        let expected: Vec<_> =
            expected.map(|(from, line, to)| (from.to_owned(), line, to.to_owned())).into();
        assert_eq!(found_uses(), expected);
    }

    #[test]
    fn cycle_between_two_files_is_found() {
        let uses = Modules::find(&sample_sources(), &["lib.rs", "main.rs"], without_tests)
            .module_uses("lib.rs", "jig")
            .into_iter()
            .map(|use_| (use_.from, use_.to))
            .collect();
        assert_eq!(cycles(&uses), [["daemon/process/start.rs", "daemon/process/stop.rs"]]);
    }

    #[test]
    fn cycle_of_three_is_reported_once() {
        let uses = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]
            .map(|(from, to)| (from.to_owned(), to.to_owned()));
        assert_eq!(cycles(&uses.into()), [["a", "b", "c"]]);
    }
}
