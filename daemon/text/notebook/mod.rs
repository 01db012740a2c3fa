//! Jupyter notebooks, nbformat 4: what their cells hold, and changing one of them.
//!
//! A notebook is never written anew. Where its parts are in the text is found out, and the text is
//! changed there: everything else keeps its bytes, whatever it is.
//!
//! | file | holds |
//! |---|---|
//! | [`change`] | replacing, inserting, deleting a cell |
//! | [`document`] | a notebook and where its cells are |
//! | [`outputs`] | outputs of cells as text |
//! | [`read`] | cells as they are answered |
//! | [`span`] | parts of a JSON text, in place |

mod change;
mod document;
mod outputs;
mod read;
mod span;

pub(crate) use self::{
    change::{Cell, Edit},
    document::{Kind, Notebook, Wanted, no_notebook},
    read::CellText,
};

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        document::MOST_CELLS,
        span::{Parts, text_of},
        *,
    };
    use crate::daemon::error::Reason;

    const JUPYTER: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "id": "aa",
   "metadata": {},
   "source": [
    "# Title\n",
    "text"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 7,
   "id": "bb",
   "metadata": {"x": 1.50e+1},
   "outputs": [
    {
     "name": "stdout",
     "output_type": "stream",
     "text": [
      "1\n"
     ]
    }
   ],
   "source": []
  }
 ],
 "metadata": {"language_info": {"name": "python"}},
 "nbformat": 4,
 "nbformat_minor": 5
}
"##;

    fn edited(text: &str, edit: &Edit) -> change::Changed {
        let changed = Notebook::parse(text).unwrap().edit(edit).unwrap();
        Notebook::parse(&changed.text).unwrap();
        changed
    }

    fn replace(text: &str, index: usize, kind: Option<Kind>, source: &str) -> String {
        let edit = Edit::Replace(Wanted::Index(index), kind, source.to_owned());
        edited(text, &edit).text
    }

    fn insert(text: &str, wanted: Option<Wanted>, kind: Kind, source: &str) -> change::Changed {
        let source = source.to_owned();
        edited(text, &Edit::Insert(wanted, Cell { kind, source }))
    }

    fn delete(text: &str, index: usize) -> String {
        edited(text, &Edit::Delete(Wanted::Index(index))).text
    }

    #[test]
    fn replaced_cells_look_like_those_that_jupyter_writes() {
        assert_eq!(
            replace(JUPYTER, 0, None, "a\nb\n\"c\""),
            JUPYTER.replace(
                "\"# Title\\n\",\n    \"text\"",
                "\"a\\n\",\n    \"b\\n\",\n    \"\\\"c\\\"\""
            )
        );
        // The outputs go, and an empty text is laid out as others are.
        let start = JUPYTER.find("[\n    {\n     \"name\"").unwrap();
        let end = JUPYTER.find("   \"source\": []").unwrap() - 2;
        let cleared = JUPYTER
            .replace(&JUPYTER[start..end], "[]")
            .replace(": 7,", ": null,");
        let code = cleared.replace("\"source\": []", "\"source\": [\n    \"x\"\n   ]");
        assert_eq!(replace(JUPYTER, 1, None, "x"), code);
        assert_eq!(replace(JUPYTER, 1, Some(Kind::Code), "x"), code);
        assert_eq!(replace(JUPYTER, 1, None, ""), cleared);
    }

    #[test]
    fn kinds_bring_their_fields() {
        let text = replace(JUPYTER, 1, Some(Kind::Raw), "");
        let start = text.find("  {\n   \"cell_type\": \"raw\"").unwrap();
        assert_eq!(
            &text[start..text.find("\n ],").unwrap()],
            "  {\n   \"cell_type\": \"raw\",\n   \"id\": \"bb\",\n   \"metadata\": {\"x\": 1.50e+1},\n   \"source\": []\n  }"
        );
        let with = JUPYTER.replacen(
            "\"id\": \"aa\"",
            "\"attachments\": {},\n   \"id\": \"aa\"",
            1,
        );
        let text = replace(&with, 0, Some(Kind::Code), "y");
        assert_eq!(
            &text[..text.find("  },").unwrap()],
            "{\n \"cells\": [\n  {\n   \"cell_type\": \"code\",\n   \"execution_count\": null,\n   \"id\": \"aa\",\n   \"metadata\": {},\n   \"outputs\": [],\n   \"source\": [\n    \"y\"\n   ]\n"
        );
        // Fields that are there several times go all; of several, the last one counts.
        let double = r#"{"nbformat": 4, "cells": [{"outputs": [1], "cell_type": "code", "outputs": [2], "source": "a", "source": "b", "outputs": [3]}]}"#;
        assert_eq!(
            replace(double, 0, Some(Kind::Markdown), "c"),
            r#"{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "a", "source": "c"}]}"#
        );
        // Keys may be written with escapes.
        let escaped = r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"raw","sourc\u0065":"a"}]}"#;
        assert_eq!(
            replace(escaped, 0, Some(Kind::Code), "c"),
            r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"code","execution_count":null,"outputs":[],"sourc\u0065":"c"}]}"#
        );
    }

    #[test]
    fn cells_are_inserted_as_their_neighbours_are_written() {
        let id = |text: &str| Notebook::parse(text).unwrap().ids[0].clone().unwrap();
        let changed = insert(JUPYTER, Some(Wanted::Index(0)), Kind::Code, "a\nb");
        assert_eq!(changed.count, 3);
        assert_eq!(changed.id, id(&changed.text));
        let new = format!(
            "  {{\n   \"cell_type\": \"code\",\n   \"execution_count\": null,\n   \"id\": \"{}\",\n   \"metadata\": {{}},\n   \"outputs\": [],\n   \"source\": [\n    \"a\\n\",\n    \"b\"\n   ]\n  }},\n",
            changed.id
        );
        let at = JUPYTER.find("  {").unwrap();
        assert_eq!(
            changed.text,
            [&JUPYTER[..at], &new, &JUPYTER[at..]].concat()
        );
        for (wanted, index) in [
            (None, 2),
            (Some(Wanted::Index(2)), 2),
            (Some(Wanted::Id("bb".to_owned())), 2),
            (Some(Wanted::Id("aa".to_owned())), 1),
            (Some(Wanted::Index(1)), 1),
        ] {
            let changed = insert(JUPYTER, wanted.clone(), Kind::Markdown, "m");
            let notebook = Notebook::parse(&changed.text).unwrap();
            assert_eq!(
                notebook.ids[index].as_ref(),
                Some(&changed.id),
                "{wanted:?}"
            );
            // Taken out again, nothing is left of it.
            assert_eq!(delete(&changed.text, index), JUPYTER);
        }
        for (empty, expected) in [
            (
                "{\"cells\":[],\"nbformat\":4}",
                "{\"cells\":[{\"cell_type\":\"raw\",\"metadata\":{},\"source\":[\"a\\n\",\"b\"]}],\"nbformat\":4}",
            ),
            (
                "{\"cells\": [ ], \"nbformat\": 4}\n",
                "{\"cells\": [{\"cell_type\": \"raw\", \"metadata\": {}, \"source\": [\"a\\n\", \"b\"]}], \"nbformat\": 4}\n",
            ),
            (
                "{\r\n  \"cells\": [],\r\n  \"nbformat\": 4\r\n}",
                "{\r\n  \"cells\": [\r\n    {\r\n      \"cell_type\": \"raw\",\r\n      \"metadata\": {},\r\n      \"source\": [\r\n        \"a\\n\",\r\n        \"b\"\r\n      ]\r\n    }\r\n  ],\r\n  \"nbformat\": 4\r\n}",
            ),
        ] {
            assert_eq!(insert(empty, None, Kind::Raw, "a\nb").text, expected);
        }
        // Ids are new ones, also where others were made the same way.
        let mut text = JUPYTER.to_owned();
        for _ in 0..20 {
            text = insert(&text, Some(Wanted::Index(0)), Kind::Raw, "").text;
        }
        let mut ids = Notebook::parse(&text).unwrap().ids;
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 22);
    }

    #[test]
    fn what_is_no_notebook_is_refused() {
        let deep = "[".repeat(1 << 20);
        for (text, told) in [
            ("", "its JSON must be an object"),
            ("[]", "its JSON must be an object"),
            ("null", "its JSON must be an object"),
            ("\u{feff}{}", "its JSON must be an object"),
            ("{", "it is not JSON"),
            ("{}x", "it is not JSON"),
            (r#"{"a": NaN}"#, "it is not JSON"),
            ("{}", "no number nbformat"),
            (r#"{"nbformat": "4"}"#, "no number nbformat"),
            (r#"{"nbformat": 3, "worksheets": []}"#, "its nbformat is 3"),
            (r#"{"nbformat": 4}"#, "no array cells"),
            (r#"{"nbformat": 4, "cells": {}}"#, "no array cells"),
            (
                r#"{"nbformat": 4, "cells": [{}, 1]}"#,
                "cells[1] is no object",
            ),
            (
                &format!(r#"{{"nbformat": 4, "cells": {deep}"#),
                "it is not JSON",
            ),
            (
                &format!(
                    r#"{{"nbformat": 4, "cells": [{}{{}}]}}"#,
                    "{},".repeat(MOST_CELLS)
                ),
                "more than 100000",
            ),
        ] {
            let error = Notebook::parse(text).unwrap_err();
            assert_eq!(error.reason, Reason::InvalidParams);
            assert_eq!(error.violations[0].field, "path");
            assert!(error.message.contains(told), "{error}");
        }
        // Depth alone is no harm.
        let deep = "[".repeat(1 << 18) + &"]".repeat(1 << 18);
        let text = format!(r#"{{"nbformat": 4, "cells": [{{"x": {deep}, "source": "a"}}]}}"#);
        assert_eq!(replace(&text, 0, None, "b"), text.replace("\"a\"", "\"b\""));
    }

    #[test]
    fn cells_are_read() {
        let notebook = Notebook::parse(JUPYTER).unwrap();
        assert_eq!(notebook.language(), "python");
        let cells = notebook.read(None).unwrap();
        assert_eq!(cells[0].source, "# Title\ntext");
        assert_eq!(
            (cells[0].kind, cells[0].id.as_str()),
            (Some(Kind::Markdown), "aa")
        );
        assert_eq!(cells[1].execution_count, Some(7));
        assert_eq!(cells[1].outputs[0].text, "1\n");
        let both = JUPYTER.replace("\"aa\"", "\"bb\"");
        let notebook = Notebook::parse(&both).unwrap();
        let cells = notebook.read(Some(&Wanted::Id("bb".to_owned()))).unwrap();
        assert_eq!(
            (cells.len(), cells[0].index),
            (1, 0),
            "the first one of equals"
        );
        let kernel = r#"{"nbformat": 4, "cells": [{"cell_type": "x", "source": [1, "a", "\ud800"], "execution_count": -1}],
            "metadata": {"kernelspec": {"language": "R"}, "language_info": {"name": "no"}}}"#;
        let notebook = Notebook::parse(kernel).unwrap();
        assert_eq!(notebook.language(), "R");
        let cell = &notebook.read(None).unwrap()[0];
        assert!(cell.source.starts_with('a') && cell.source.ends_with('\u{fffd}'));
        assert_eq!((cell.kind, cell.execution_count), (None, None));
    }

    #[test]
    fn answers_are_bounded() {
        let cell = format!(r#"{{"source": "{}", "id": "x"}}"#, "s".repeat(1 << 20));
        let text = format!(r#"{{"nbformat": 4, "cells": [{cell}, {cell}, {cell}]}}"#);
        let notebook = Notebook::parse(&text).unwrap();
        assert_eq!(
            notebook.read(None).unwrap_err().reason,
            Reason::FileTooLarge
        );
        assert_eq!(notebook.read(Some(&Wanted::Index(2))).unwrap().len(), 1);
        let output = format!(
            r#"{{"output_type": "stream", "text": "{}"}}"#,
            "\u{e9}".repeat(9999)
        );
        let outputs = vec![output; 300].join(",");
        let cell = format!(r#"{{"source": "", "outputs": [{outputs}]}}"#);
        let text = format!(r#"{{"nbformat": 4, "cells": [{cell}, {cell}]}}"#);
        let cells = Notebook::parse(&text).unwrap().read(None).unwrap();
        let first = &cells[0].outputs[0];
        assert_eq!((first.text.len(), first.truncated), (10_000, true));
        let size: usize = cells
            .iter()
            .flat_map(|cell| &cell.outputs)
            .map(|o| o.text.len())
            .sum();
        assert!(size < 700 << 10, "{size}");
        assert_eq!(cells[1].outputs[0].text, "[300 more outputs]");
    }

    #[derive(Debug)]
    struct Random(u64);

    impl Random {
        fn below(&mut self, below: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(self.0 >> 33).unwrap() % below
        }

        fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
            from[self.below(from.len())]
        }

        fn space(&mut self) -> &'static str {
            self.pick(&["", "", " ", "\n ", "\r\n\t", "  "])
        }

        fn string(&mut self) -> String {
            let pieces = [
                "a", "\\n", "\\u00e9", "\u{e9}", "\\\"", "\\\\", "[", "{", ",", "\\/", "]",
            ];
            let text: String = (0..self.below(5)).map(|_| self.pick(&pieces)).collect();
            format!("\"{text}\"")
        }

        fn value(&mut self, depth: usize) -> String {
            match self.below(if depth == 0 { 4 } else { 6 }) {
                0 => self
                    .pick(&["1", "-0", "1.0e+10", "1E400", "0.10"])
                    .to_owned(),
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

        /// A cell; in place of what replacing it changes are marks.
        fn cell(&mut self) -> (String, bool) {
            let code = self.below(2) == 0;
            let mut fields = vec![
                (
                    "cell_type",
                    if code { "\"code\"" } else { "\"markdown\"" }.to_owned(),
                ),
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

        fn filled(&mut self, cell: &str) -> String {
            let source = match self.below(2) {
                0 => self.string(),
                _ => {
                    let lines = (0..self.below(3)).map(|_| self.string()).collect();
                    self.container("[", lines, "]")
                }
            };
            let outputs = (0..self.below(3)).map(|_| self.value(2)).collect();
            let outputs = self.container("[", outputs, "]");
            cell.replace("<source>", &source)
                .replace("<outputs>", &outputs)
                .replace("<count>", self.pick(&["null", "3"]))
        }
    }

    #[test]
    fn everything_else_keeps_its_bytes() {
        let mut random = Random(11);
        for _ in 0..4000 {
            let marked: Vec<(String, bool)> =
                (0..=random.below(4)).map(|_| random.cell()).collect();
            let cells: Vec<String> = marked.iter().map(|(cell, _)| random.filled(cell)).collect();
            let index = random.below(cells.len());
            // The others keep their bytes, and so does what is around them.
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
            let (marked, code) = &marked[index];
            let (head_of_cell, tail_of_cell) = marked.split_once("<source>").unwrap();
            let pieces = [head_of_cell, tail_of_cell].map(|piece| {
                let mut pattern = piece.replace("<count>", "null");
                if let Some(at) = pattern.find("<outputs>") {
                    // Empty ones keep what white space they have.
                    let old = &cells[index];
                    let parts = Parts::of(old, 100).unwrap();
                    let outputs = parts.get("outputs").unwrap();
                    let kept = if Parts::of(outputs, 0).is_ok() {
                        outputs
                    } else {
                        "[]"
                    };
                    pattern.replace_range(at..at + "<outputs>".len(), kept);
                }
                pattern
            });
            let start = [head.as_str(), &before, &pieces[0]].concat();
            let end = [pieces[1].as_str(), &after, &tail].concat();
            let new = result
                .strip_prefix(&start)
                .and_then(|rest| rest.strip_suffix(&end))
                .unwrap_or_else(|| panic!("{text}\n{result}\n{code}"));
            assert_eq!(text_of(new, usize::MAX).0, source, "{new}");
            serde_json::from_str::<&serde_json::value::RawValue>(&result).unwrap();

            // Inserted and deleted again, it is as before.
            let wanted = Wanted::Index(random.below(cells.len() + 1));
            let changed = insert(&text, Some(wanted.clone()), Kind::Code, &source);
            let Wanted::Index(at) = wanted else {
                unreachable!()
            };
            let cell = &Notebook::parse(&changed.text)
                .unwrap()
                .read(Some(&Wanted::Index(at)))
                .unwrap()[0];
            assert_eq!(
                (cell.source.as_str(), cell.kind),
                (source.as_str(), Some(Kind::Code))
            );
            let again = delete(&changed.text, at);
            if at < cells.len() {
                assert_eq!(again, text);
            }
            // Deleted, the others stay.
            let deleted = delete(&text, index);
            let rest = Notebook::parse(&deleted).unwrap();
            let others: Vec<&str> = rest.cells.list().iter().map(|part| part.value).collect();
            let mut expected: Vec<&str> = cells.iter().map(String::as_str).collect();
            expected.remove(index);
            assert_eq!(others, expected);
            assert!(deleted.starts_with(&head) && deleted.ends_with(&tail));
        }
    }

    #[test]
    fn changes_of_kind_leave_other_values_as_they_are() {
        let mut random = Random(5);
        for _ in 0..2000 {
            let (cell, code) = random.cell();
            let cell = random.filled(&cell).replace("1E400", "1");
            let text = format!("{{\"nbformat\":4,\"cells\":[{cell}]}}");
            let kind = [Kind::Code, Kind::Markdown, Kind::Raw][random.below(3)];
            let result = replace(&text, 0, Some(kind), "s");
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let mut expected = parse(&text);
            let fields = expected["cells"][0].as_object_mut().unwrap();
            fields.insert("cell_type".to_owned(), kind.name().into());
            fields.remove("outputs");
            fields.remove("execution_count");
            if kind == Kind::Code {
                fields.insert("outputs".to_owned(), Value::Array(Vec::new()));
                fields.insert("execution_count".to_owned(), Value::Null);
            }
            let one = fields["source"].is_string();
            let source = if one { "s".into() } else { vec!["s"].into() };
            fields.insert("source".to_owned(), source);
            assert_eq!(parse(&result), expected, "{text} {code} {kind:?}");
        }
    }

    #[test]
    fn garbage_never_panics() {
        let mut random = Random(23);
        let pieces = [
            "{", "}", "[", "]", ",", ":", "\"", "\\", "\\ud800", "\u{e9}", "1", "null", " ",
        ];
        let mut understood = 0;
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
            understood += 1;
            let _too_large = notebook.read(None);
            notebook.language();
            let cell = Cell {
                kind: Kind::Code,
                source: "a\nb".to_owned(),
            };
            for index in 0..3 {
                for edit in [
                    Edit::Delete(Wanted::Index(index)),
                    Edit::Insert(Some(Wanted::Index(index)), cell.clone()),
                    Edit::Replace(Wanted::Index(index), Some(Kind::Code), "x".to_owned()),
                    Edit::Replace(Wanted::Index(index), Some(Kind::Raw), "x".to_owned()),
                ] {
                    if let Ok(changed) = notebook.edit(&edit) {
                        Notebook::parse(&changed.text).unwrap();
                    }
                }
            }
        }
        assert!(understood > 500, "{understood}");
    }
}
