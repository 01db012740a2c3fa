//! Three NATS servers, which replicate streams among them.

use std::net::TcpListener;

use super::nats_server::NatsServer;

/// Starts a cluster. Its servers are named by their index.
pub(super) async fn start_cluster() -> Vec<NatsServer> {
    // The servers need to know all ports before they start. Another program may take one until then,
    // as unlikely as it is.
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
    let mut servers = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let config = format!(
            "server_name: \"{index}\"\n\
             cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n"
        );
        servers.push(NatsServer::start_with_config(&config).await);
    }
    servers
}
