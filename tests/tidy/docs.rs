//! Rules of the documentation: the Markdown pages in the root and in `docs/`.

use std::{collections::BTreeSet, path::Path};

use super::{assert_none, files::committed_files};

const MAX_README_LINES: usize = 250;
const MAX_COLUMNS: usize = 100;
const MAX_SENTENCE_WORDS: usize = 30;
/// Info strings of code blocks. CONTRIBUTING.md says how the tests run them.
const CODE_BLOCK_KINDS: &[&str] =
    &["json", "python", "sh", "sh curl", "sh grpcurl", "sh jig", "text", "toml", "toml jigd", "ts"];

#[test]
fn pages_are_short_and_wrapped() {
    let wide = pages().into_iter().flat_map(|(page, text)| {
        wide_lines(&text)
            .into_iter()
            .map(move |line| format!("{page}:{line}: more than {MAX_COLUMNS} columns"))
    });
    let lines = super::read_file("README.md").lines().count();
    let long_readme = (lines > MAX_README_LINES).then(|| format!("README.md: {lines} lines"));
    assert_none("long lines and pages", wide.chain(long_readme));

    let line = "x".repeat(MAX_COLUMNS);
    let text = format!("{line}\n{line}x\n| {line} |\n```\n{line}x\n```\n");
    assert_eq!(wide_lines(&text), [2]);
}

#[test]
fn page_sentences_are_short() {
    let found = pages().into_iter().flat_map(|(page, text)| {
        let long_sentences = sentences(&text)
            .into_iter()
            .filter(|sentence| sentence.split(' ').count() > MAX_SENTENCE_WORDS);
        long_sentences.map(|sentence| format!("{page}: {sentence}")).collect::<Vec<_>>()
    });
    assert_none("sentences of more than 30 words", found);

    let text = "# A b\nOne [two\nthree](x.md). Four (`f.g`\nh.)\n\n- Five\n- six: seven\n| a | b. c |\n```\nx\n```\n";
    assert_eq!(
        sentences(text),
        ["One [two three](x.md).", "Four (`f.g` h.)", "Five", "six: seven", "a", "b.", "c"]
    );
}

#[test]
fn code_blocks_have_a_known_kind() {
    let found = pages().into_iter().flat_map(|(page, text)| {
        let fences = text.lines().filter_map(|line| line.strip_prefix("```"));
        let unknown = fences.step_by(2).filter(|info| !CODE_BLOCK_KINDS.contains(info));
        unknown.map(|info| format!("{page}: {info:?}")).collect::<Vec<_>>()
    });
    assert_none("code blocks of an unknown kind", found);
}

#[test]
fn page_links_resolve() {
    let pages = pages();
    let found = pages.iter().flat_map(|(page, text)| {
        let broken = links(text).into_iter().filter(|link| !link_resolves(page, link));
        broken.map(move |link| format!("{page}: {link}"))
    });
    assert_none("broken links", found);
    assert_eq!(links("a [b](c.md#d), [`e`](#f)\n[g](http://h)"), ["c.md#d", "#f"]);
    assert_eq!(slug("A key's `none`, *x_y*-z"), "a-keys-none-x_y-z");
    assert!(link_resolves("docs/tools.md", "../README.md#install"));
    assert!(!link_resolves("docs/tools.md", "README.md"));
    assert!(!link_resolves("README.md", "docs/tools.md#absent"));
}

/// Paths and texts of the pages.
fn pages() -> Vec<(String, String)> {
    let files = committed_files().into_iter();
    files
        .filter(|(file, _)| {
            let is_page = !file.contains('/') || file.starts_with("docs/");
            is_page && file.ends_with(".md")
        })
        .collect()
}

/// Lines outside code blocks, by their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

fn wide_lines(text: &str) -> Vec<usize> {
    prose(text)
        .filter(|(_, line)| !line.starts_with('|') && line.chars().count() > MAX_COLUMNS)
        .map(|(number, _)| number)
        .collect()
}

/// Sentences of paragraphs, list items and table cells. Headings have none.
fn sentences(text: &str) -> Vec<String> {
    let mut paragraphs = vec![Vec::new()];
    let mut next_line = 1;
    for (number, line) in prose(text) {
        let line = line.trim();
        let numbered = line.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let is_item = line.starts_with("- ") || line.starts_with("* ");
        let is_item = is_item || numbered.len() < line.len() && numbered.starts_with(". ");

        // A code block ends a paragraph too.
        if line.is_empty() || line.starts_with(['#', '|']) || is_item || number != next_line {
            paragraphs.push(Vec::new());
        }

        next_line = number + 1;
        let content = match line.split_once(' ') {
            Some((_, content)) if is_item => content,
            _ => line,
        };

        match line.strip_prefix('|') {
            Some(row) => {
                paragraphs.extend(row.split('|').map(|cell| cell.split_whitespace().collect()));
                paragraphs.push(Vec::new());
            }
            None if line.starts_with('#') => {}
            None => paragraphs.last_mut().unwrap().extend(content.split_whitespace()),
        }
    }

    let is_last_word =
        |word: &&str| word.trim_end_matches(['*', ')', '"']).ends_with(['.', '!', '?']);
    paragraphs
        .iter()
        .flat_map(|words| words.split_inclusive(is_last_word))
        .map(|sentence| sentence.join(" "))
        .filter(|sentence| !sentence.is_empty())
        .collect()
}

/// Targets of links within the repository.
fn links(text: &str) -> Vec<&str> {
    prose(text)
        .flat_map(|(_, line)| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.starts_with("http"))
        .collect()
}

/// Whether the file that a page links to exists, with the heading that the link names.
fn link_resolves(page: &str, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let target = match path {
        "" => page,
        path => page.parent().unwrap().join(path),
    };
    if anchor.is_empty() {
        return target.exists();
    }

    let text = std::fs::read_to_string(target).unwrap_or_default();
    let headings: BTreeSet<String> = prose(&text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| slug(line.trim_start_matches('#').trim()))
        .collect();
    headings.contains(anchor)
}

/// The anchor that GitHub gives a heading.
fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|character| character.is_alphanumeric() || "-_ ".contains(*character))
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}
