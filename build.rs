//! Compiles `proto/` into `$OUT_DIR`: the Rust types, and the descriptors with all comments and
//! options. Uses protox and needs no `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

const PROTO_FILES: [&str; 11] = [
    "jig/v1/approval_service.proto",
    "jig/v1/artifact_service.proto",
    "jig/v1/catalog_service.proto",
    "jig/v1/daemon_service.proto",
    "jig/v1/event_service.proto",
    "jig/v1/invoke_service.proto",
    "jig/v1/job_service.proto",
    "jig/v1/options.proto",
    "jig/v1/process_service.proto",
    "jig/v1/tool_service.proto",
    "jig/v1/transfer_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(PROTO_FILES)?;

    // protox encodes the descriptors because prost's descriptor types drop custom options.
    fs::write(out_dir.join("jig.v1.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        .bytes(".")
        // Ordered maps, so that equal requests have equal encodings.
        .btree_map(".")
        .server_mod_attribute(".", "#[cfg(feature = \"daemon\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
