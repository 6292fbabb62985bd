//! Names below `localhost`, which are this machine (RFC 6761, section 6.3) although many resolvers do not know: `bucket.localhost` is how a store on
//! this machine is reached by virtual-host style.

use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const LOCALHOST: &str = "localhost";

/// Whether a name is this machine's.
fn is_local(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name.strip_suffix(LOCALHOST).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Whether an endpoint's host is this machine by name.
pub(super) fn is_local_endpoint(endpoint: &str) -> bool {
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let host = authority.split(['/', '?', '#']).next().unwrap_or_default();
    is_local(host.rsplit_once(':').map_or(host, |(host, _)| host))
}

/// Knows the names of this machine, and no others.
#[derive(Clone, Debug)]
pub(super) struct Loopback;

impl ResolveDns for Loopback {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        use aws_smithy_runtime_api::client::dns::ResolveDnsError;
        DnsFuture::ready(match is_local(name) {
            true => Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]),
            false => Err(ResolveDnsError::new(format!("{name} is no name of this machine"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for here in ["http://localhost:8333", "https://s3.localhost", "http://LOCALHOST/", "localhost:1"] {
            assert!(is_local_endpoint(here), "{here}");
        }
        for elsewhere in ["http://127.0.0.1:1", "http://notlocalhost:1", "http://localhost.example:1", "http://[::1]:1"]
        {
            assert!(!is_local_endpoint(elsewhere), "{elsewhere}");
        }
        assert!(is_local("bucket.localhost") && is_local("bucket.localhost."));
    }
}
