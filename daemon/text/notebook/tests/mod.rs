//! Notebooks as Jupyter and others write them.

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

fn edited(text: &str, edit: &CellChange) -> cell_change::EditedNotebook {
    let changed = Notebook::parse(text).unwrap().apply_change(edit).unwrap();
    Notebook::parse(&changed.text).unwrap();
    changed
}

fn replace(text: &str, index: usize, kind: Option<CellKind>, source: &str) -> String {
    let edit = CellChange::Replace(CellSelector::Index(index), kind, source.to_owned());
    edited(text, &edit).text
}

fn insert(
    text: &str,
    wanted: Option<CellSelector>,
    kind: CellKind,
    source: &str,
) -> cell_change::EditedNotebook {
    let source = source.to_owned();
    edited(text, &CellChange::Insert(wanted, NewCell { kind, source }))
}

fn delete(text: &str, index: usize) -> String {
    edited(text, &CellChange::Delete(CellSelector::Index(index))).text
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
    let cleared = JUPYTER.replace(&JUPYTER[start..end], "[]").replace(": 7,", ": null,");
    let code = cleared.replace("\"source\": []", "\"source\": [\n    \"x\"\n   ]");
    assert_eq!(replace(JUPYTER, 1, None, "x"), code);
    assert_eq!(replace(JUPYTER, 1, Some(CellKind::Code), "x"), code);
    assert_eq!(replace(JUPYTER, 1, None, ""), cleared);
}

#[test]
fn kinds_bring_their_fields() {
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
    // Fields that are there several times go all; of several, the last one counts.
    let double = r#"{"nbformat": 4, "cells": [{"outputs": [1], "cell_type": "code", "outputs": [2], "source": "a", "source": "b", "outputs": [3]}]}"#;
    assert_eq!(
        replace(double, 0, Some(CellKind::Markdown), "c"),
        r#"{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "a", "source": "c"}]}"#
    );
    // Keys may be written with escapes.
    let escaped = r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"raw","sourc\u0065":"a"}]}"#;
    assert_eq!(
        replace(escaped, 0, Some(CellKind::Code), "c"),
        r#"{"nbformat":4,"cells":[{"c\u0065ll_type":"code","execution_count":null,"outputs":[],"sourc\u0065":"c"}]}"#
    );
}

#[test]
fn cells_are_inserted_as_their_neighbours_are_written() {
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
    for (wanted, index) in [
        (None, 2),
        (Some(CellSelector::Index(2)), 2),
        (Some(CellSelector::Id("bb".to_owned())), 2),
        (Some(CellSelector::Id("aa".to_owned())), 1),
        (Some(CellSelector::Index(1)), 1),
    ] {
        let changed = insert(JUPYTER, wanted.clone(), CellKind::Markdown, "m");
        let notebook = Notebook::parse(&changed.text).unwrap();
        assert_eq!(notebook.ids[index].as_ref(), Some(&changed.id), "{wanted:?}");
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
        assert_eq!(insert(empty, None, CellKind::Raw, "a\nb").text, expected);
    }
    // Ids are new ones, also where others were made the same way.
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
fn what_is_no_notebook_is_refused() {
    let deep = "[".repeat(1 << 20);
    for (text, told) in [
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
        (r#"{"nbformat": 4, "cells": [{}, 1]}"#, "cells[1] is no object"),
        (&format!(r#"{{"nbformat": 4, "cells": {deep}"#), "it is not JSON"),
        (
            &format!(r#"{{"nbformat": 4, "cells": [{}{{}}]}}"#, "{},".repeat(MAX_CELLS)),
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
fn no_edit_makes_a_notebook_that_is_not_read_again() {
    let refused = |text: &str, edit: &CellChange| {
        let error = Notebook::parse(text).unwrap().apply_change(edit).unwrap_err();
        assert_eq!(error.reason, Reason::FileTooLarge);
        assert!(error.message.contains("nothing was changed"), "{error}");
        error.message
    };
    let cells = vec!["{}"; MAX_CELLS].join(",");
    let text = format!(r#"{{"nbformat": 4, "cells": [{cells}]}}"#);
    let cell = NewCell { kind: CellKind::Code, source: String::new() };
    assert!(refused(&text, &CellChange::Insert(None, cell.clone())).contains("100000 cells"));
    let less = delete(&text, 7);
    assert_eq!(edited(&less, &CellChange::Insert(None, cell)).count, MAX_CELLS);

    let fields: String = (1..MAX_FIELDS).map(|at| format!(r#""{at}": 0,"#)).collect();
    let text = format!(r#"{{"nbformat": 4, "cells": [{{{fields} "cell_type": "raw"}}]}}"#);
    let edit = CellChange::Replace(CellSelector::Index(0), Some(CellKind::Code), String::new());
    assert!(refused(&text, &edit).contains("10000 fields"));
}

#[test]
fn a_byte_order_mark_stays() {
    let with = format!("\u{feff}{JUPYTER}");
    let notebook = Notebook::parse(&with).unwrap();
    let cells = notebook.read_cells(None).unwrap();
    assert_eq!(cells, Notebook::parse(JUPYTER).unwrap().read_cells(None).unwrap());
    assert_eq!(replace(&with, 0, None, "x"), format!("\u{feff}{}", replace(JUPYTER, 0, None, "x")));
}

#[test]
fn numbers_that_only_python_writes_stay_where_they_are() {
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
fn cells_are_read() {
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
    assert_eq!((cells.len(), cells[0].index), (1, 0), "the first one of equals");
    let kernel = r#"{"nbformat": 4, "cells": [{"cell_type": "x", "source": [1, "a", "\ud800"], "execution_count": -1}],
            "metadata": {"kernelspec": {"language": "R"}, "language_info": {"name": "no"}}}"#;
    let notebook = Notebook::parse(kernel).unwrap();
    assert_eq!(notebook.language(), "R");
    let cell = &notebook.read_cells(None).unwrap()[0];
    assert!(cell.source.starts_with('a') && cell.source.ends_with('\u{fffd}'));
    assert_eq!((cell.kind, cell.execution_count), (None, None));
}

#[test]
fn answers_are_bounded() {
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
