//! Random notebooks: everything outside a change keeps its bytes.

use serde_json::Value;

use super::{
    super::json_span::{JsonContainer, parse_multiline_text},
    *,
};

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", " ", "\n ", "\r\n\t", "  "])
    }

    fn string(&mut self) -> String {
        let pieces = ["a", "\\n", "\\u00e9", "\u{e9}", "\\\"", "\\\\", "[", "{", ",", "\\/", "]"];
        let text: String = (0..self.below(5)).map(|_| self.pick(&pieces)).collect();
        format!("\"{text}\"")
    }

    fn value(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 4 } else { 6 }) {
            0 => self.pick(&["1", "-0", "1.0e+10", "1E400", "0.10"]).to_owned(),
            1 => self.pick(&["true", "false", "null"]).to_owned(),
            2 | 3 => self.string(),
            4 => {
                let elements: Vec<String> =
                    (0..self.below(4)).map(|_| self.value(depth - 1)).collect();
                self.container("[", elements, "]")
            }
            _ => {
                let members = (0..self.below(4))
                    .map(|number| {
                        format!(
                            "\"k{number}\"{}:{}{}",
                            self.space(),
                            self.space(),
                            self.value(depth - 1)
                        )
                    })
                    .collect();
                self.container("{", members, "}")
            }
        }
    }

    fn container(&mut self, open: &str, parts: Vec<String>, close: &str) -> String {
        let mut text = open.to_owned() + self.space();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                text = text + self.space() + "," + self.space();
            }
            text += part;
        }
        text + self.space() + close
    }

    /// Returns a cell with markers in place of the values that a replacement changes, and whether
    /// it is a code cell.
    fn template(&mut self) -> (String, bool) {
        let code = self.below(2) == 0;
        let mut fields = vec![
            ("cell_type", if code { "\"code\"" } else { "\"markdown\"" }.to_owned()),
            ("source", "<source>".to_owned()),
        ];
        if code {
            fields.push(("outputs", "<outputs>".to_owned()));
            fields.push(("execution_count", "<count>".to_owned()));
        }
        for name in ["u1", "u2", "metadata"].iter().take(self.below(4)) {
            fields.push((name, self.value(3)));
        }
        let mut members = Vec::new();
        while !fields.is_empty() {
            let (key, value) = fields.swap_remove(self.below(fields.len()));
            members.push(format!("\"{key}\"{}:{}{value}", self.space(), self.space()));
        }
        (self.container("{", members, "}"), code)
    }

    fn fill(&mut self, template: &str) -> String {
        let source = match self.below(2) {
            0 => self.string(),
            _ => {
                let lines = (0..self.below(3)).map(|_| self.string()).collect();
                self.container("[", lines, "]")
            }
        };
        let outputs = (0..self.below(3)).map(|_| self.value(2)).collect();
        let outputs = self.container("[", outputs, "]");
        template
            .replace("<source>", &source)
            .replace("<outputs>", &outputs)
            .replace("<count>", self.pick(&["null", "3"]))
    }
}

#[test]
fn bytes_outside_the_cell_do_not_change() {
    let mut random = Random(11);
    for _ in 0..4000 {
        let templates: Vec<(String, bool)> =
            (0..=random.below(4)).map(|_| random.template()).collect();
        let cells: Vec<String> = templates.iter().map(|(cell, _)| random.fill(cell)).collect();
        let index = random.below(cells.len());

        let mut before = "[".to_owned() + random.space();
        for cell in &cells[..index] {
            before = before + cell + random.space() + "," + random.space();
        }
        let mut after = String::new();
        for cell in &cells[index + 1..] {
            after = after + random.space() + "," + random.space() + cell;
        }
        after = after + random.space() + "]";
        let unknown = random.value(3);
        let head = format!(
            "{}{{\"x\":{unknown},{}\"nbformat\" :4,\"cells\":",
            random.space(),
            random.space()
        );
        let tail = format!(",\"y\":{}}}{}", random.value(3), random.space());
        let text = [head.as_str(), &before, &cells[index], &after, &tail].concat();

        let source: String = (0..random.below(4))
            .map(|_| random.pick(&["a", "\n", "\u{e9}", "\"", "\\", "\t"]))
            .collect();
        let result = replace(&text, index, None, &source);
        let (template, code) = &templates[index];
        let (head_of_cell, tail_of_cell) = template.split_once("<source>").unwrap();
        let pieces = [head_of_cell, tail_of_cell].map(|piece| {
            let mut pattern = piece.replace("<count>", "null");
            if let Some(at) = pattern.find("<outputs>") {
                // Empty outputs keep their white space.
                let old = &cells[index];
                let parts = JsonContainer::parse(old, 100).unwrap();
                let outputs = parts.get("outputs").unwrap();
                let expected =
                    if JsonContainer::parse(outputs, 0).is_ok() { outputs } else { "[]" };
                pattern.replace_range(at..at + "<outputs>".len(), expected);
            }
            pattern
        });
        let start = [head.as_str(), &before, &pieces[0]].concat();
        let end = [pieces[1].as_str(), &after, &tail].concat();
        let new = result
            .strip_prefix(&start)
            .and_then(|rest| rest.strip_suffix(&end))
            .unwrap_or_else(|| panic!("{text}\n{result}\n{code}"));
        assert_eq!(parse_multiline_text(new, usize::MAX).0, source, "{new}");
        serde_json::from_str::<&serde_json::value::RawValue>(&result).unwrap();

        // Deleting an inserted cell restores the text.
        let selector = CellSelector::Index(random.below(cells.len() + 1));
        let changed = insert(&text, Some(selector.clone()), CellKind::Code, &source);
        let CellSelector::Index(at) = selector else { unreachable!() };
        let cell = &Notebook::parse(&changed.text)
            .unwrap()
            .read_cells(Some(&CellSelector::Index(at)))
            .unwrap()[0];
        assert_eq!((cell.source.as_str(), cell.kind), (source.as_str(), Some(CellKind::Code)));
        let restored = delete(&changed.text, at);
        if at < cells.len() {
            assert_eq!(restored, text);
        }

        // Deleting a cell keeps the others.
        let deleted = delete(&text, index);
        let rest = Notebook::parse(&deleted).unwrap();
        let others: Vec<&str> = rest.cells.entries().iter().map(|part| part.value).collect();
        let mut expected: Vec<&str> = cells.iter().map(String::as_str).collect();
        expected.remove(index);
        assert_eq!(others, expected);
        assert!(deleted.starts_with(&head) && deleted.ends_with(&tail));
    }
}

#[test]
fn changing_the_kind_keeps_other_values() {
    let mut random = Random(5);
    for _ in 0..2000 {
        let (cell, code) = random.template();
        let cell = random.fill(&cell).replace("1E400", "1");
        let text = format!("{{\"nbformat\":4,\"cells\":[{cell}]}}");
        let kind = [CellKind::Code, CellKind::Markdown, CellKind::Raw][random.below(3)];
        let result = replace(&text, 0, Some(kind), "s");
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let mut expected = parse(&text);
        let fields = expected["cells"][0].as_object_mut().unwrap();
        fields.insert("cell_type".to_owned(), kind.name().into());
        fields.remove("outputs");
        fields.remove("execution_count");
        if kind == CellKind::Code {
            fields.insert("outputs".to_owned(), Value::Array(Vec::new()));
            fields.insert("execution_count".to_owned(), Value::Null);
        }
        let is_string = fields["source"].is_string();
        let source = if is_string { "s".into() } else { vec!["s"].into() };
        fields.insert("source".to_owned(), source);
        assert_eq!(parse(&result), expected, "{text} {code} {kind:?}");
    }
}

#[test]
fn garbage_never_panics() {
    let mut random = Random(23);
    let pieces = ["{", "}", "[", "]", ",", ":", "\"", "\\", "\\ud800", "\u{e9}", "1", "null", " "];
    let mut parsed = 0;
    for _ in 0..30_000 {
        let mut text: Vec<char> = JUPYTER.chars().collect();
        for _ in 0..1 + random.below(3) {
            let at = random.below(text.len());
            let to = (at + random.below(30)).min(text.len());
            let new: Vec<char> = random.pick(&pieces).chars().collect();
            text.splice(at..to, new);
        }
        let text: String = text.into_iter().collect();
        let Ok(notebook) = Notebook::parse(&text) else {
            continue;
        };
        parsed += 1;
        let _too_large = notebook.read_cells(None);
        notebook.language();
        let cell = NewCell { kind: CellKind::Code, source: "a\nb".to_owned() };
        for index in 0..3 {
            for change in [
                CellChange::Delete(CellSelector::Index(index)),
                CellChange::Insert(Some(CellSelector::Index(index)), cell.clone()),
                CellChange::Replace(
                    CellSelector::Index(index),
                    Some(CellKind::Code),
                    "x".to_owned(),
                ),
                CellChange::Replace(
                    CellSelector::Index(index),
                    Some(CellKind::Raw),
                    "x".to_owned(),
                ),
            ] {
                if let Ok(edited) = notebook.apply_change(&change) {
                    Notebook::parse(&edited.text).unwrap();
                }
            }
        }
    }
    assert!(parsed > 500, "{parsed}");
}
