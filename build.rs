//! Compiles `proto/` into `$OUT_DIR`: the Rust types, and the descriptors with all comments and
//! options. Uses protox and needs no `protoc`.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

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

/// The process service of the Kubernetes agent-sandbox runtime. It has descriptors of its own: it is
/// no part of the contract.
const AGENT_SANDBOX_FILES: [&str; 1] = ["process/v1/process.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    compile(&PROTO_FILES, &out_dir.join("jig.v1.bin"))?;
    compile(&AGENT_SANDBOX_FILES, &out_dir.join("process.v1.bin"))
}

/// Compiles files with their imports, and writes their descriptors to `descriptors`.
fn compile(files: &[&str], descriptors: &Path) -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;

    // protox encodes the descriptors because prost's descriptor types drop custom options.
    fs::write(descriptors, compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        .bytes(".")
        // Ordered maps, so that equal requests have equal encodings.
        .btree_map(".")
        .server_mod_attribute(".", "#[cfg(feature = \"daemon\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
