//! The tools for Jupyter notebooks.

use serde_json::{Map, Value as Json, json};

use super::super::{
    definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
    parameter::DialectParams,
    response::DialectResponse,
};

/// The parameters that select a cell.
fn cell_params(mut params: DialectParams) -> Map<String, Json> {
    let names = ["path", "cell_id", "cell_index"];
    names.map(|name| (name.to_owned(), params.take(name))).into_iter().collect()
}

pub(super) fn read(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new("read_notebook", cell_params(params).into());
        let mut notebook = tools.call(call).await?;

        let cells: Vec<Json> = notebook
            .objects("cells")
            .map(|cell| {
                let kind = cell.enum_name("type", "CELL_TYPE_");
                let mut cell =
                    cell.select(&["id", "index", "source", "execution_count", "outputs"]);
                cell.insert("type".to_owned(), kind.into());
                cell.into()
            })
            .collect();
        Ok(DialectResponse::data(json!({ "cells": cells, "language": notebook.take("language") })))
    })
}

pub(super) fn edit(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let source = params.take("source");
        let mode = format!("CELL_EDIT_{}", params.str("mode").to_uppercase());
        let kind =
            params.text("cell_type").map(|kind| format!("CELL_TYPE_{}", kind.to_uppercase()));
        let mut fields = cell_params(params);
        fields.extend([
            ("source".to_owned(), source),
            ("mode".to_owned(), mode.into()),
            ("cell_type".to_owned(), kind.into()),
        ]);

        let mut edited = tools.call(CanonicalCall::new("edit_notebook", fields.into())).await?;
        Ok(DialectResponse::data(json!({
            "success": true,
            "cell_id": edited.take("cell_id"),
            "cell_count": edited.take("cell_count"),
        })))
    })
}
