//! The tools of the contract, by their own names: one row for each.

use super::rows;

rows!("contract":
    apply_patch create_directory delete_path edit_file edit_notebook fetch_url last_command list_dir list_files
    move_path read_file read_notebook run search stat wait_job write_file
);
