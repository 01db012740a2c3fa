//! A plain tonic server, with which `tests/clients/h2spec.sh` compares jigd. Prints its address.

#![expect(clippy::print_stdout, reason = "the caller reads the address")]

use tonic::transport::{Server, server::TcpIncoming};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    println!("{}", incoming.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder().accept_http1(true).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
