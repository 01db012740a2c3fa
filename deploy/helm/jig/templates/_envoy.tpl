{{/* The configuration of Envoy, as deploy/kubernetes/scale-out/envoy.yaml. */}}
{{- define "jig.envoy" -}}
{{- $name := include "jig.fullname" . -}}
# Envoy in front of several daemons: all calls of a workspace go to one daemon, by a hash ring over `jig-workspace`.
# docs/operate/scale-out.md describes each decision. Envoy 1.40.
node: {id: jig-router, cluster: jig-router}

admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 9901}}

static_resources:
  listeners:
    - name: jig
      address: {socket_address: {address: 0.0.0.0, port_value: 50051}}
      per_connection_buffer_limit_bytes: 1048576
      filter_chains:
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificate_sds_secret_configs:
                  - {name: server, sds_config: {path_config_source: {path: /etc/envoy/server.yaml}}}
          filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: jig
                codec_type: AUTO
                use_remote_address: true
                preserve_external_request_id: true
                # Streams may be silent for hours. PING finds clients that have gone.
                stream_idle_timeout: 0s
                request_headers_timeout: 30s
                http2_protocol_options:
                  max_concurrent_streams: 1024
                  initial_stream_window_size: 1048576
                  initial_connection_window_size: 16777216
                  connection_keepalive: {interval: 30s, timeout: 10s}
                upgrade_configs: [{upgrade_type: websocket}]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  name: jig
                  virtual_hosts:
                    - name: jig
                      domains: ["*"]
                      # The daemon that answered, for operators.
                      response_headers_to_add:
                        - {header: {key: x-jig-daemon, value: "%UPSTREAM_HOST_NAME%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
                      routes:
                        # The daemon has done nothing when it answers UNAVAILABLE. With a request id, it does the work once, so a call may also be sent
                        # again after it broke.
                        - name: workspace-with-request-id
                          match:
                            prefix: /
                            headers:
                              - {name: jig-workspace, present_match: true}
                              - {name: jig-request-id, present_match: true}
                          route:
                            cluster: jigd
                            timeout: 0s
                            hash_policy: &by-workspace
                              - {header: {header_name: jig-workspace}}
                            retry_policy:
                              retry_on: connect-failure,refused-stream,unavailable,reset
                              num_retries: 12
                              {{- if .Values.scaleOut.move }}
                              # A repeat goes to another daemon.
                              host_selection_retry_max_attempts: 100
                              retry_host_predicate:
                                - name: envoy.retry_host_predicates.previous_hosts
                                  typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}
                              {{- end }}
                              retry_back_off: &back-off {base_interval: 0.25s, max_interval: 4s}
                        - name: workspace
                          match:
                            prefix: /
                            headers: [{name: jig-workspace, present_match: true}]
                          route:
                            cluster: jigd
                            timeout: 0s
                            hash_policy: *by-workspace
                            retry_policy: &not-started
                              retry_on: connect-failure,refused-stream,unavailable
                              num_retries: 12
                              {{- if .Values.scaleOut.move }}
                              # A repeat goes to another daemon.
                              host_selection_retry_max_attempts: 100
                              retry_host_predicate:
                                - name: envoy.retry_host_predicates.previous_hosts
                                  typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}
                              {{- end }}
                              retry_back_off: *back-off
                        - name: workspace-in-query
                          match:
                            prefix: /v1/
                            query_parameters: [{name: workspace, present_match: true}]
                          route:
                            cluster: jigd
                            timeout: 0s
                            hash_policy: [{query_parameter: {name: workspace}}]
                            retry_policy: *not-started
                        # Every daemon can answer these.
                        - {name: healthz, match: {path: /healthz}, route: &any-daemon {cluster: jigd, timeout: 0s, retry_policy: *not-started}}
                        - {name: readyz, match: {path: /readyz}, route: *any-daemon}
                        - {name: health, match: {prefix: /grpc.health.v1.Health/}, route: *any-daemon}
                        - {name: reflection, match: {prefix: /grpc.reflection.}, route: *any-daemon}
                        - {name: daemon, match: {prefix: /jig.v1.DaemonService/}, route: *any-daemon}
                        - {name: catalog, match: {prefix: /jig.v1.CatalogService/}, route: *any-daemon}
                        # Other calls without a workspace would reach a random daemon, which does not know their jobs, processes and sessions.
                        - name: no-workspace-grpc
                          match: {prefix: /, grpc: {}}
                          direct_response: {status: 200, body: {inline_string: &no-workspace "set jig-workspace: this address serves several daemons, and the workspace selects one"}}
                          response_headers_to_add:
                            - {header: {key: grpc-status, value: "3"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
                        - name: no-workspace
                          match: {prefix: /}
                          direct_response: {status: 400, body: {inline_string: *no-workspace}}

    # Probes and metrics, without the rest of the administration interface.
    - name: status
      address: {socket_address: {address: 0.0.0.0, port_value: 9902}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: status
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: status
                      domains: ["*"]
                      routes:
                        - {match: {path: /ready}, route: {cluster: admin}}
                        - {match: {path: /stats/prometheus}, route: {cluster: admin}}

  clusters:
    - name: jigd
      type: STRICT_DNS
      connect_timeout: 2s
      lb_policy: RING_HASH
      ring_hash_lb_config: {minimum_ring_size: 4096, hash_function: XX_HASH}
      # 100: the ring keeps a daemon that is down, because the files of its workspaces are there. Its calls wait about 20 s for it.
      common_lb_config: {healthy_panic_threshold: {value: 100}}
      # For metrics: they change no route.
      health_checks:
        - timeout: 2s
          interval: 1s
          no_traffic_interval: 1s
          unhealthy_threshold: 2
          healthy_threshold: 1
          grpc_health_check: {service_name: readiness}
      circuit_breakers:
        thresholds:
          - {max_connections: 1024, max_pending_requests: 65536, max_requests: 65536, max_retries: 1024}
      per_connection_buffer_limit_bytes: 1048576
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          use_downstream_protocol_config:
            http_protocol_options: {}
            http2_protocol_options:
              max_concurrent_streams: 1024
              initial_stream_window_size: 1048576
              initial_connection_window_size: 16777216
              connection_keepalive: {interval: 30s, timeout: 10s}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            combined_validation_context:
              default_validation_context:
                match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: jigd}}]
              validation_context_sds_secret_config: {name: daemons, sds_config: {path_config_source: {path: /etc/envoy/daemons.yaml}}}
      load_assignment:
        cluster_name: jigd
        endpoints:
          - lb_endpoints:
              # One Service for each pod: its address outlives the pod. `hash_key` is the place in the ring, whatever the address.
              {{- range $index := until (int .Values.replicas) }}
              - endpoint: {address: {socket_address: {address: {{ $name }}-{{ $index }}, port_value: 50051}}}
                metadata: {filter_metadata: {envoy.lb: {hash_key: {{ $name }}-{{ $index }}}}}
              {{- end }}
    - name: admin
      type: STATIC
      load_assignment:
        cluster_name: admin
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}}]}]
{{- end -}}
