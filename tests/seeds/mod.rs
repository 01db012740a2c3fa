//! The five source documents, row by row (README.md), checked on a running daemon. Also, tool by
//! tool, the contract and the dialects that vendors train their models on. The scenarios are
//! data: one file or directory per document. Each test runs one row and has its name.

mod agentbench;
mod anthropic;
mod batch;
mod claude;
mod cli_agent;
mod contract;
mod coverage;
mod dracode;
mod fixture;
mod matching;
mod openai;
mod rauskuclaw;
mod rauskuclaw_http;
mod scenario;
mod schemas;
mod web;

/// Defines a test for each row of a document, which runs all scenarios of the row.
macro_rules! rows {
    ($document:literal: $($row:ident)*) => {
        $(
            #[tokio::test]
            async fn $row() {
                $crate::seeds::scenario::play($document, stringify!($row)).await;
            }
        )*

        #[test]
        fn every_row_of_the_document_has_its_test() {
            let rows = [$(stringify!($row)),*];
            $crate::seeds::scenario::check($document, &rows);
        }
    };
}
pub(crate) use rows;
