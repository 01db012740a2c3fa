//! Tests with notebooks in the forms that Jupyter and other programs write.

mod random;

use super::{
    document::{MAX_CELLS, MAX_FIELDS},
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

fn apply(text: &str, change: &CellChange) -> cell_change::EditedNotebook {
    let edited = Notebook::parse(text).unwrap().apply_change(change).unwrap();
    Notebook::parse(&edited.text).unwrap();
    edited
}

fn replace(text: &str, index: usize, kind: Option<CellKind>, source: &str) -> String {
    let change = CellChange::Replace(CellSelector::Index(index), kind, source.to_owned());
    apply(text, &change).text
}

fn insert(
    text: &str,
    selector: Option<CellSelector>,
    kind: CellKind,
    source: &str,
) -> cell_change::EditedNotebook {
    let source = source.to_owned();
    apply(text, &CellChange::Insert(selector, NewCell { kind, source }))
}

fn delete(text: &str, index: usize) -> String {
    apply(text, &CellChange::Delete(CellSelector::Index(index))).text
}

#[test]
fn replaced_cells_have_the_layout_of_jupyter() {
    assert_eq!(
        replace(JUPYTER, 0, None, "a\nb\n\"c\""),
        JUPYTER.replace(
            "\"# Title\\n\",\n    \"text\"",
            "\"a\\n\",\n    \"b\\n\",\n    \"\\\"c\\\"\""
        )
    );

    // Outputs are cleared, and an empty source gets the layout of others.
    let start = JUPYTER.find("[\n    {\n     \"name\"").unwrap();
    let end = JUPYTER.find("   \"source\": []").unwrap() - 2;
    let cleared = JUPYTER.replace(&JUPYTER[start..end], "[]").replace(": 7,", ": null,");
    let code = cleared.replace("\"source\": []", "\"source\": [\n    \"x\"\n   ]");
    assert_eq!(replace(JUPYTER, 1, None, "x"), code);
    assert_eq!(replace(JUPYTER, 1, Some(CellKind::Code), "x"), code);
    assert_eq!(replace(JUPYTER, 1, None, ""), cleared);
}

#[test]
fn changing_the_kind_adds_and_removes_fields() {
    let text = replace(JUPYTER, 1, Some(CellKind::Raw), "");
    let start = text.find("  {\n   \"cell_type\": \"raw\"").unwrap();
    assert_eq!(
        &text[start..text.find("\n ],").unwrap()],
        "  {\n   \"cell_type\": \"raw\",\n   \"id\": \"bb\",\n   \"metadata\": {\"x\": 1.50e+1},\n   \"source\": []\n  }"
    );

    let with = JUPYTER.replacen("\"id\": \"aa\"", "\"attachments\": {},\n   \"id\": \"aa\"", 1);
    let text = replace(&with, 0, Some(CellKind::Code), "y");
    assert_eq!(
        &text[..text.find("  },").unwrap()],
        "{\n \"cells\": [\n  {\n   \"cell_type\": \"code\",\n   \"execution_count\": null,\n   \"id\": \"aa\",\n   \"metadata\": {},\n   \"outputs\": [],\n   \"source\": [\n    \"y\"\n   ]\n"
    );

    // All duplicates of a removed field are removed. The last duplicate counts.
    let double = r#"{"nbformat": 4, "cells": [{"outputs": [1], "cell_type": "code", "outputs": [2], "source": "a", "source": "b", "outputs": [3]}]}"#;
    assert_eq!(
        replace(double, 0, Some(CellKind::Markdown), "c"),
        r#"{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "a", "source": "c"}]}"#
    );

    // Keys may contain escapes.
    let escaped = r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"raw","sourc\u0065":"a"}]}"#;
    assert_eq!(
        replace(escaped, 0, Some(CellKind::Code), "c"),
        r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"code","execution_count":null,"outputs":[],"sourc\u0065":"c"}]}"#
    );
}

#[test]
fn inserted_cells_have_the_layout_of_their_neighbours() {
    let id = |text: &str| Notebook::parse(text).unwrap().ids[0].clone().unwrap();
    let changed = insert(JUPYTER, Some(CellSelector::Index(0)), CellKind::Code, "a\nb");

    assert_eq!(changed.count, 3);
    assert_eq!(changed.id, id(&changed.text));
    let new = format!(
        "  {{\n   \"cell_type\": \"code\",\n   \"execution_count\": null,\n   \"id\": \"{}\",\n   \"metadata\": {{}},\n   \"outputs\": [],\n   \"source\": [\n    \"a\\n\",\n    \"b\"\n   ]\n  }},\n",
        changed.id
    );
    let at = JUPYTER.find("  {").unwrap();
    assert_eq!(changed.text, [&JUPYTER[..at], &new, &JUPYTER[at..]].concat());
    for (selector, index) in [
        (None, 2),
        (Some(CellSelector::Index(2)), 2),
        (Some(CellSelector::Id("bb".to_owned())), 2),
        (Some(CellSelector::Id("aa".to_owned())), 1),
        (Some(CellSelector::Index(1)), 1),
    ] {
        let changed = insert(JUPYTER, selector.clone(), CellKind::Markdown, "m");
        let notebook = Notebook::parse(&changed.text).unwrap();
        assert_eq!(notebook.ids[index].as_ref(), Some(&changed.id), "{selector:?}");
        // Deleting the cell restores the text.
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
        assert_eq!(insert(empty, None, CellKind::Raw, "a\nb").text, expected);
    }

    // Ids are unique, even for equal insertions.
    let mut text = JUPYTER.to_owned();
    for _ in 0..20 {
        text = insert(&text, Some(CellSelector::Index(0)), CellKind::Raw, "").text;
    }
    let mut ids = Notebook::parse(&text).unwrap().ids;
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 22);
}

#[test]
fn other_files_are_rejected() {
    let deep = "[".repeat(1 << 20);
    for (text, expected) in [
        ("", "its JSON must be an object"),
        ("[]", "its JSON must be an object"),
        ("null", "its JSON must be an object"),
        ("\u{feff}{}", "no number nbformat"),
        ("\u{feff}\u{feff}{}", "its JSON must be an object"),
        ("{", "it is not JSON"),
        ("{}x", "it is not JSON"),
        (r#"{"a": NaN}"#, "no number nbformat"),
        (r#"{"a": -NaN}"#, "it is not JSON"),
        (r#"{NaN: 1}"#, "it is not JSON"),
        ("{}", "no number nbformat"),
        (r#"{"nbformat": "4"}"#, "no number nbformat"),
        (r#"{"nbformat": 3, "worksheets": []}"#, "its nbformat is 3"),
        (r#"{"nbformat": 4}"#, "no array cells"),
        (r#"{"nbformat": 4, "cells": {}}"#, "no array cells"),
        (r#"{"nbformat": 4, "cells": [{}, 1]}"#, "cells[1] is not an object"),
        (&format!(r#"{{"nbformat": 4, "cells": {deep}"#), "it is not JSON"),
        (
            &format!(r#"{{"nbformat": 4, "cells": [{}{{}}]}}"#, "{},".repeat(MAX_CELLS)),
            "more than 100000",
        ),
    ] {
        let error = Notebook::parse(text).unwrap_err();
        assert_eq!(error.reason, Reason::InvalidParams);
        assert_eq!(error.violations[0].field, "path");
        assert!(error.message.contains(expected), "{error}");
    }

    // Deep nesting is accepted.
    let deep = "[".repeat(1 << 18) + &"]".repeat(1 << 18);
    let text = format!(r#"{{"nbformat": 4, "cells": [{{"x": {deep}, "source": "a"}}]}}"#);
    assert_eq!(replace(&text, 0, None, "b"), text.replace("\"a\"", "\"b\""));
}

#[test]
fn changes_that_would_exceed_read_limits_are_rejected() {
    let apply_error = |text: &str, change: &CellChange| {
        let error = Notebook::parse(text).unwrap().apply_change(change).unwrap_err();
        assert_eq!(error.reason, Reason::FileTooLarge);
        assert!(error.message.contains("nothing was changed"), "{error}");
        error.message
    };
    let cells = vec!["{}"; MAX_CELLS].join(",");
    let text = format!(r#"{{"nbformat": 4, "cells": [{cells}]}}"#);
    let cell = NewCell { kind: CellKind::Code, source: String::new() };
    assert!(apply_error(&text, &CellChange::Insert(None, cell.clone())).contains("100000 cells"));
    let text = delete(&text, 7);
    assert_eq!(apply(&text, &CellChange::Insert(None, cell)).count, MAX_CELLS);

    let fields: String = (1..MAX_FIELDS).map(|at| format!(r#""{at}": 0,"#)).collect();
    let text = format!(r#"{{"nbformat": 4, "cells": [{{{fields} "cell_type": "raw"}}]}}"#);
    let change = CellChange::Replace(CellSelector::Index(0), Some(CellKind::Code), String::new());
    assert!(apply_error(&text, &change).contains("10000 fields"));
}

#[test]
fn byte_order_mark_is_preserved() {
    let with = format!("\u{feff}{JUPYTER}");
    let notebook = Notebook::parse(&with).unwrap();
    let cells = notebook.read_cells(None).unwrap();
    assert_eq!(cells, Notebook::parse(JUPYTER).unwrap().read_cells(None).unwrap());
    assert_eq!(replace(&with, 0, None, "x"), format!("\u{feff}{}", replace(JUPYTER, 0, None, "x")));
}

#[test]
fn non_finite_numbers_of_python_are_preserved() {
    let with = JUPYTER
        .replace(
            "\"output_type\": \"stream\"",
            "\"x\": [NaN, -Infinity, \"NaN\"], \"output_type\": \"stream\"",
        )
        .replace("1.50e+1", "Infinity");
    let cells = Notebook::parse(&with).unwrap().read_cells(None).unwrap();
    assert_eq!(cells, Notebook::parse(JUPYTER).unwrap().read_cells(None).unwrap());
    assert_eq!(
        replace(&with, 0, None, "NaN"),
        with.replace("\"# Title\\n\",\n    \"text\"", "\"NaN\"")
    );
    let changed = insert(&with, Some(CellSelector::Index(1)), CellKind::Code, "x");
    assert_eq!(delete(&changed.text, 1), with);
    let data =
        r#"{"nbformat": 4, "cells": [{"outputs": [{"data": {"application/json": {"a": NaN}}}]}]}"#;
    let cells = Notebook::parse(data).unwrap().read_cells(None).unwrap();
    assert_eq!(cells[0].outputs[0].text, "[application/json, 10 bytes]");
}

#[test]
fn reads_cells_and_language() {
    let notebook = Notebook::parse(JUPYTER).unwrap();
    assert_eq!(notebook.language(), "python");
    let cells = notebook.read_cells(None).unwrap();
    assert_eq!(cells[0].source, "# Title\ntext");
    assert_eq!((cells[0].kind, cells[0].id.as_str()), (Some(CellKind::Markdown), "aa"));
    assert_eq!(cells[1].execution_count, Some(7));
    assert_eq!(cells[1].outputs[0].text, "1\n");
    let both = JUPYTER.replace("\"aa\"", "\"bb\"");
    let notebook = Notebook::parse(&both).unwrap();
    let cells = notebook.read_cells(Some(&CellSelector::Id("bb".to_owned()))).unwrap();
    assert_eq!((cells.len(), cells[0].index), (1, 0), "the first of equal ids");
    let kernel = r#"{"nbformat": 4, "cells": [{"cell_type": "x", "source": [1, "a", "\ud800"], "execution_count": -1}],
            "metadata": {"kernelspec": {"language": "R"}, "language_info": {"name": "no"}}}"#;
    let notebook = Notebook::parse(kernel).unwrap();
    assert_eq!(notebook.language(), "R");
    let cell = &notebook.read_cells(None).unwrap()[0];
    assert!(cell.source.starts_with('a') && cell.source.ends_with('\u{fffd}'));
    assert_eq!((cell.kind, cell.execution_count), (None, None));
}

#[test]
fn response_size_is_limited() {
    let cell = format!(r#"{{"source": "{}", "id": "x"}}"#, "s".repeat(1 << 20));
    let text = format!(r#"{{"nbformat": 4, "cells": [{cell}, {cell}, {cell}]}}"#);
    let notebook = Notebook::parse(&text).unwrap();
    assert_eq!(notebook.read_cells(None).unwrap_err().reason, Reason::FileTooLarge);
    assert_eq!(notebook.read_cells(Some(&CellSelector::Index(2))).unwrap().len(), 1);
    let output = format!(r#"{{"output_type": "stream", "text": "{}"}}"#, "\u{e9}".repeat(9999));
    let outputs = vec![output; 300].join(",");
    let cell = format!(r#"{{"source": "", "outputs": [{outputs}]}}"#);
    let text = format!(r#"{{"nbformat": 4, "cells": [{cell}, {cell}]}}"#);
    let cells = Notebook::parse(&text).unwrap().read_cells(None).unwrap();
    let first = &cells[0].outputs[0];
    assert_eq!((first.text.len(), first.truncated), (10_000, true));
    let size: usize = cells.iter().flat_map(|cell| &cell.outputs).map(|o| o.text.len()).sum();
    assert!(size < 700 << 10, "{size}");
    assert_eq!(cells[1].outputs[0].text, "[300 more outputs]");
}
