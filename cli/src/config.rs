//! Configuration: flag > environment (`REFSTREAM_*`) > file > default; every value knows where it came from.

use crate::{
    Global,
    exit::{Exit, Failure},
    stores::StoreSettings,
};
use figment::{
    Figment, Profile, Source,
    providers::{Env, Format as _, Serialized, Toml},
    value::{Dict, Value},
};
use refstream::{Client, ClientOptions, StoreAccess, StoreCredentials, Token, types::StoreName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

/// An idle broker writes a slot every third of `death_after`.
const SHORTEST_DEATH_AFTER: Duration = Duration::from_millis(100);
/// A writer proves at least this often that it is not fenced, with a slot.
const SHORTEST_FENCE_CHECK: Duration = Duration::from_secs(1);

/// A fenced writer notices it at least this often.
const LONGEST_FENCE_CHECK: Duration = Duration::from_secs(60);
/// Nobody would wait longer for a dead broker's segments.
const LONGEST_DEATH_AFTER: Duration = Duration::from_secs(3_600);
/// Every append waits for it.
const LONGEST_LINGER: Duration = Duration::from_secs(10);
/// Days that producers are remembered, at least: a producer that retries for longer than the expiry could be appended twice.
const PRODUCER_EXPIRY_DAYS: std::ops::RangeInclusive<u64> = 7..=3_650;
/// Bytes of batches that may wait.
const PENDING_BYTES: std::ops::RangeInclusive<usize> = 8 << 20..=16 << 30;
/// Bytes of batches that are kept for readers.
const MOST_READ_CACHE_BYTES: usize = 256 << 30;
/// How long clients try to reach a broker.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(7 * 86_400);

/// A grant must reach the client and be used.
const SHORTEST_GRANT: Duration = Duration::from_secs(1);
/// Who has a grant keeps it, whatever happens to his token.
const LONGEST_GRANT: Duration = Duration::from_secs(3_600);

/// A duration as people write it: `5ms`, `30s`, `7days`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

impl std::str::FromStr for Period {
    type Err = humantime::DurationError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self)
    }
}

impl Serialize for Period {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| {
            serde::de::Error::custom(format!("{text:?} is not a duration such as 5ms, 30s or 7days: {error}"))
        })
    }
}

/// All settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The broker that clients talk to, or several, separated by commas.
    pub(crate) endpoint: String,
    /// How long clients try to reach it.
    pub(crate) timeout: Period,
    /// Certificates (PEM) of authorities that clients trust beside the system's, for a broker with TLS.
    pub(crate) ca_file: Option<PathBuf>,
    /// How clients reach stores: auto, own, grants.
    pub(crate) store_access: StoreAccess,
    /// The broker of `up` and `broker`.
    pub(crate) broker: BrokerSettings,
    /// Who may call the broker.
    pub(crate) auth: AuthSettings,
    /// What the broker signs for clients without credentials.
    pub(crate) grants: GrantSettings,
    /// Stores by name, for `broker`.
    pub(crate) stores: BTreeMap<StoreName, StoreSettings>,
}

/// Who may call a broker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthSettings {
    /// Hashes of tokens by name, as `refstream token` prints them. With any, every call needs a token.
    pub(crate) tokens: BTreeMap<String, String>,
}

/// What a broker signs for clients that have no credentials of the stores.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GrantSettings {
    /// Whether it gives grants.
    pub(crate) enabled: bool,
    /// How long a grant is accepted: a request must begin in this time.
    pub(crate) life: Period,
    /// Payloads of clients that upload by grants are looked up before a record that refers to them is taken.
    pub(crate) check_receipts: bool,
    /// Key prefixes that may be read by grants besides topics' own objects, such as those of objects attached in place.
    pub(crate) read_prefixes: Vec<String>,
}

impl Default for GrantSettings {
    fn default() -> Self {
        Self { enabled: true, life: Period(Duration::from_secs(300)), check_receipts: true, read_prefixes: Vec::new() }
    }
}

impl GrantSettings {
    fn validate(&self) -> Result<(), Failure> {
        if !(SHORTEST_GRANT..=LONGEST_GRANT).contains(&self.life.0) {
            let [least, most] = [SHORTEST_GRANT, LONGEST_GRANT].map(humantime::format_duration);
            return Err(Failure::usage(format!("the setting grants.life is refused: use {least} to {most}")));
        }
        // A grant to read what brokers coordinate by would tell of other topics, and an empty prefix is everything.
        if let Some(prefix) = self.read_prefixes.iter().find(|prefix| prefix.is_empty() || prefix.starts_with('/')) {
            return Err(Failure::usage(format!(
                "the setting grants.read_prefixes is refused: {prefix:?} is no beginning of a key, such as photos/"
            )));
        }
        Ok(())
    }
}

/// A broker's settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BrokerSettings {
    /// Folder of the embedded store (`up`).
    pub(crate) data: PathBuf,
    /// gRPC.
    pub(crate) listen: SocketAddr,
    /// Health, metrics.
    pub(crate) http: SocketAddr,
    /// The embedded S3 server (`up`).
    pub(crate) s3: SocketAddr,
    /// The embedded store waits until the disk holds what it acknowledges.
    pub(crate) fsync: bool,
    /// The broker's certificate (PEM), those that lead to an authority behind it; gRPC is TLS then, and may listen beyond loopback.
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The key of the certificate (PEM).
    pub(crate) tls_key: Option<PathBuf>,
    /// How clients reach gRPC; empty: at `listen`.
    pub(crate) advertise: String,
    /// The store that holds metadata and files (`broker`).
    pub(crate) metadata_store: Option<StoreName>,
    /// The store of new payloads; the metadata store when not set.
    pub(crate) default_store: Option<StoreName>,
    /// Key prefix of everything in the metadata store; empty: the top of the bucket.
    pub(crate) root: String,
    /// How long a batch may wait for company; 5ms on the embedded store, 100ms on others when not set.
    pub(crate) linger: Option<Period>,
    /// The same while no journal object is on its way; 0 on the embedded store, as `linger` on others when not set.
    pub(crate) linger_when_idle: Option<Period>,
    /// W: journal creates in flight.
    pub(crate) slots_in_flight: u32,
    /// K: slots between checkpoints.
    pub(crate) checkpoint_slots: u64,
    /// D: a broker whose journal stood still this long is presumed dead; 1.5s on the embedded store, 10s on others.
    pub(crate) death_after: Option<Period>,
    /// How often a writer confirms that it is not fenced.
    pub(crate) fence_check: Period,
    /// Producers unheard of for this long are forgotten.
    pub(crate) producer_expiry: Period,
    /// Bytes of batches that may wait for their journal object.
    pub(crate) pending_bytes: usize,
    /// Bytes of committed batches kept for readers.
    pub(crate) read_cache_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:7400".into(),
            timeout: Period(Duration::from_secs(10)),
            ca_file: None,
            store_access: StoreAccess::default(),
            broker: BrokerSettings::default(),
            auth: AuthSettings::default(),
            grants: GrantSettings::default(),
            stores: BTreeMap::new(),
        }
    }
}

impl Default for BrokerSettings {
    fn default() -> Self {
        let core = refstream_core::Settings::default();
        Self {
            data: "refstream-data".into(),
            listen: ([127, 0, 0, 1], 7400).into(),
            http: ([127, 0, 0, 1], 7401).into(),
            s3: ([127, 0, 0, 1], 7402).into(),
            fsync: true,
            tls_certificate: None,
            tls_key: None,
            advertise: String::new(),
            metadata_store: None,
            default_store: None,
            root: String::new(),
            linger: None,
            linger_when_idle: None,
            slots_in_flight: core.slots_in_flight,
            checkpoint_slots: core.checkpoint_slots,
            death_after: None,
            fence_check: Period(core.fence_check),
            producer_expiry: Period(core.producer_expiry),
            pending_bytes: core.pending_bytes,
            read_cache_bytes: 64 << 20,
        }
    }
}

impl BrokerSettings {
    /// The core's settings; `local`: the metadata store is on this machine.
    pub(crate) fn core(&self, local: bool) -> refstream_core::Settings {
        let (linger, death_after) = if local { (5, 1_500) } else { (100, 10_000) };
        let linger = self.linger.map_or(Duration::from_millis(linger), |p| p.0);
        refstream_core::Settings {
            slots_in_flight: self.slots_in_flight,
            checkpoint_slots: self.checkpoint_slots,
            linger,
            linger_when_idle: self.linger_when_idle.map_or(if local { Duration::ZERO } else { linger }, |p| p.0),
            death_after: self.death_after.map_or(Duration::from_millis(death_after), |p| p.0),
            fence_check: self.fence_check.0,
            producer_expiry: self.producer_expiry.0,
            pending_bytes: self.pending_bytes,
            ..refstream_core::Settings::default()
        }
    }

    fn validate(&self) -> Result<(), Failure> {
        let refuse =
            |setting: &str, why: &str| Err(Failure::usage(format!("the setting broker.{setting} is refused: {why}")));
        if !(1..=refstream_core::MAX_SLOTS_IN_FLIGHT).contains(&u64::from(self.slots_in_flight)) {
            return refuse("slots_in_flight", &format!("use 1 to {}", refstream_core::MAX_SLOTS_IN_FLIGHT));
        }
        let set = |period: Option<Period>| period.map(|period| period.0);
        for (name, setting, least, most, why) in [
            (
                "death_after",
                set(self.death_after),
                SHORTEST_DEATH_AFTER,
                LONGEST_DEATH_AFTER,
                "a shorter one only wears the store out, a longer one leaves a dead broker's topics standing",
            ),
            (
                "fence_check",
                Some(self.fence_check.0),
                SHORTEST_FENCE_CHECK,
                LONGEST_FENCE_CHECK,
                "a shorter one only wears the store out, with a longer one a fenced writer notices it too late",
            ),
            ("linger", set(self.linger), Duration::ZERO, LONGEST_LINGER, "every append waits for it"),
            (
                "linger_when_idle",
                set(self.linger_when_idle),
                Duration::ZERO,
                LONGEST_LINGER,
                "every append waits for it",
            ),
        ] {
            if setting.is_some_and(|setting| !(least..=most).contains(&setting)) {
                let [least, most] = [least, most].map(humantime::format_duration);
                return refuse(name, &format!("use {least} to {most}: {why}"));
            }
        }
        if !(1..=65_536).contains(&self.checkpoint_slots) {
            return refuse("checkpoint_slots", "use 1 to 65536");
        }
        let days = self.producer_expiry.0.as_secs_f64() / 86_400.0;
        if days < *PRODUCER_EXPIRY_DAYS.start() as f64 || days > *PRODUCER_EXPIRY_DAYS.end() as f64 {
            return refuse(
                "producer_expiry",
                "use 7days to 3650days: a producer that retries for longer than the expiry could be appended twice",
            );
        }
        if !PENDING_BYTES.contains(&self.pending_bytes) {
            let (least, most) = PENDING_BYTES.into_inner();
            return refuse("pending_bytes", &format!("use {least} to {most}"));
        }
        if self.read_cache_bytes > MOST_READ_CACHE_BYTES {
            return refuse("read_cache_bytes", &format!("use 0 to {MOST_READ_CACHE_BYTES}"));
        }
        Ok(())
    }
}

/// Settings together with where each came from.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    figment: Figment,
}

/// Flags as a layer of their own: dotted path and value.
pub(crate) type Flags = Vec<(&'static str, Option<String>)>;

fn flag_layer(flags: Flags) -> Dict {
    let mut layer = Dict::new();
    for (path, value) in flags {
        if let Some(value) = value {
            let nested = path
                .rsplit('.')
                .fold(Value::from(value), |inner, part| Value::from(Dict::from([(part.to_owned(), inner)])));
            if let Value::Dict(_, dict) = nested {
                merge(&mut layer, dict);
            }
        }
    }
    layer
}

fn merge(into: &mut Dict, from: Dict) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Dict(_, inner)), Value::Dict(_, more)) => merge(inner, more),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn file(global: &Global) -> Result<Option<PathBuf>, Failure> {
    let asked = global.config.clone().or_else(|| std::env::var_os("REFSTREAM_CONFIG").map(PathBuf::from));
    if let Some(path) = asked {
        return if path.is_file() {
            Ok(Some(path))
        } else {
            Err(Failure::usage(format!("the configuration file {} does not exist or is no file", path.display())))
        };
    }
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let candidates = [Some(PathBuf::from("refstream.toml")), home.map(|home| home.join("refstream/config.toml"))];
    Ok(candidates.into_iter().flatten().find(|path| path.is_file()))
}

/// Loads all layers.
pub(crate) fn load(global: &Global, flags: Flags) -> Result<Loaded, Failure> {
    let mut figment = Figment::from(Serialized::defaults(Settings::default()));
    if let Some(path) = file(global)? {
        figment = figment.merge(Toml::file_exact(path));
    }
    let known = |name: &figment::value::UncasedStr| {
        let name = name.as_str().to_ascii_lowercase();
        matches!(name.as_str(), "endpoint" | "timeout" | "ca_file" | "store_access")
            || ["broker__", "stores__", "auth__", "grants__"].iter().any(|section| name.starts_with(section))
    };
    figment = figment.merge(Env::prefixed("REFSTREAM_").filter(known).split("__"));
    let mut all: Flags = vec![
        ("endpoint", global.endpoint.clone()),
        ("timeout", global.timeout.clone()),
        ("store_access", global.store_access.clone()),
    ];
    all.extend(flags);
    // `Serialized` reports where it was called; the name says what it is.
    figment = figment.merge(Named { name: "flag", layer: flag_layer(all) });
    let settings: Settings = figment
        .extract()
        .map_err(|error| Failure::usage(format!("the configuration is invalid: {}", describe(&error))))?;
    refuse_user_info(&settings)?;
    if !TIMEOUTS.contains(&settings.timeout.0) {
        let (least, most) = TIMEOUTS.into_inner();
        let [least, most] = [least, most].map(humantime::format_duration);
        return Err(Failure::usage(format!("the setting timeout is refused: use {least} to {most}")));
    }
    for (name, store) in &settings.stores {
        store.validate().map_err(|why| Failure::usage(format!("the setting stores.{name}.{why}")))?;
    }
    settings.broker.validate()?;
    settings.grants.validate()?;
    Ok(Loaded { settings, figment })
}

/// What is wrong with a URL that holds a user name or password; what they are is never repeated.
pub(crate) const NO_USER_INFO: &str = "a user name or password, which would be printed and logged: leave it out; \
    credentials come from the variables REFSTREAM_ACCESS_KEY, REFSTREAM_SECRET_KEY and AWS_*";

/// Whether a URL, or one of several with commas between them, has something before an `@` in its authority.
pub(crate) fn has_user_info(urls: &str) -> bool {
    urls.split(',').any(one_has_user_info)
}

fn one_has_user_info(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

fn refuse_user_info(settings: &Settings) -> Result<(), Failure> {
    let stores = settings.stores.iter().flat_map(|(name, store)| match store {
        StoreSettings::S3(s3) => vec![(format!("stores.{name}.endpoint"), s3.endpoint.as_str())],
        StoreSettings::Seaweed(seaweed) => {
            seaweed.masters.split(',').map(|master| (format!("stores.{name}.masters"), master.trim())).collect()
        }
        StoreSettings::Embedded(_) => Vec::new(),
    });
    let own = [("endpoint", &settings.endpoint), ("broker.advertise", &settings.broker.advertise)];
    let own = own.into_iter().map(|(name, url)| (name.to_owned(), url.as_str()));
    match own.chain(stores).find(|(_, url)| has_user_info(url)) {
        Some((name, _)) => Err(Failure::usage(format!("the setting {name} is refused: it holds {NO_USER_INFO}"))),
        None => Ok(()),
    }
}

fn describe(error: &figment::Error) -> String {
    error
        .clone()
        .into_iter()
        .map(|e| {
            let from = e.metadata.as_ref().map(|m| format!(" (from {})", origin(m))).unwrap_or_default();
            let path = e.path.join(".");
            if path.is_empty() { format!("{}{from}", e.kind) } else { format!("{path}: {}{from}", e.kind) }
        })
        .collect::<Vec<_>>()
        .join("; ")
}

fn origin(metadata: &figment::Metadata) -> String {
    match &metadata.source {
        Some(Source::File(path)) => format!("file {}", path.display()),
        _ if metadata.name.contains("environment") => "environment".into(),
        _ if metadata.name == "flag" => "flag".into(),
        _ => "default".into(),
    }
}

struct Named {
    name: &'static str,
    layer: Dict,
}

impl figment::Provider for Named {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named(self.name)
    }
    fn data(&self) -> Result<figment::value::Map<Profile, Dict>, figment::Error> {
        Ok(figment::value::Map::from([(Profile::Default, self.layer.clone())]))
    }
}

impl Loaded {
    /// Every setting: dotted name, value, where it came from.
    pub(crate) fn origins(&self) -> Vec<(String, serde_json::Value, String)> {
        fn walk(at: &str, value: &serde_json::Value, each: &mut dyn FnMut(&str, &serde_json::Value)) {
            match value {
                serde_json::Value::Object(fields) if !fields.is_empty() => {
                    for (name, value) in fields {
                        walk(&if at.is_empty() { name.clone() } else { format!("{at}.{name}") }, value, each);
                    }
                }
                leaf => each(at, leaf),
            }
        }
        let mut found = Vec::new();
        let value = serde_json::to_value(&self.settings).unwrap_or_default();
        walk("", &value, &mut |name, value| {
            let from = self.figment.find_metadata(name).map_or_else(|| "default".into(), origin);
            found.push((name.to_owned(), value.clone(), from));
        });
        found
    }
}

/// The environment variable that holds the token.
pub(crate) const TOKEN_VARIABLE: &str = "REFSTREAM_TOKEN";

/// The token to show to the broker. No setting: settings are printed.
pub(crate) fn token(global: &Global) -> Option<String> {
    global.token.clone().or_else(|| std::env::var(TOKEN_VARIABLE).ok()).filter(|token| !token.is_empty())
}

/// The client's options from all layers. `REFSTREAM_ACCESS_KEY` and `REFSTREAM_SECRET_KEY` are for the deployment's stores only;
/// without them the usual AWS chain applies.
pub(crate) fn client_options(global: &Global) -> Result<ClientOptions, Failure> {
    let settings = load(global, Vec::new())?.settings;
    let mut options = ClientOptions::new(settings.endpoint);
    options.timeout = settings.timeout.0;
    options.ca_file = settings.ca_file;
    options.store_access = settings.store_access;
    options.token = token(global).map(Token::new);
    match (std::env::var("REFSTREAM_ACCESS_KEY"), std::env::var("REFSTREAM_SECRET_KEY")) {
        (Ok(access_key), Ok(secret_key)) => options.credentials = Some(StoreCredentials { access_key, secret_key }),
        (Err(_), Err(_)) => {}
        _ => return Err(Failure::usage("set both REFSTREAM_ACCESS_KEY and REFSTREAM_SECRET_KEY, or neither")),
    }
    Ok(options)
}

/// Connects.
pub(crate) async fn connect(global: &Global) -> Result<Client, Failure> {
    let options = client_options(global)?;
    let is_url = |endpoint: &str| endpoint.starts_with("http://") || endpoint.starts_with("https://");
    if !options.endpoint.split(',').all(|endpoint| is_url(endpoint.trim())) {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "the endpoint {:?} is no URL: use http://HOST:PORT, for example http://127.0.0.1:7400",
                options.endpoint
            ),
        ));
    }
    Ok(Client::connect_with(options).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global() -> Global {
        Global {
            endpoint: None,
            timeout: None,
            token: None,
            store_access: None,
            config: None,
            output: crate::Format::Json,
            verbose: 0,
        }
    }

    #[test]
    fn a_flag_wins_and_says_so() {
        let mut global = global();
        global.endpoint = Some("http://127.0.0.1:9".into());
        let loaded = load(&global, vec![("broker.listen", Some("127.0.0.1:1".into()))]).unwrap();
        assert_eq!(loaded.settings.endpoint, "http://127.0.0.1:9");
        assert_eq!(loaded.settings.broker.listen.port(), 1);
        let origins = loaded.origins();
        let from = |name: &str| origins.iter().find(|(n, ..)| n == name).map(|(_, _, from)| from.as_str());
        assert_eq!(from("endpoint"), Some("flag"));
        assert_eq!(from("broker.listen"), Some("flag"));
        assert_eq!(from("broker.http"), Some("default"));
    }

    #[test]
    fn a_bad_value_names_itself_and_its_origin() {
        let failure = load(&global(), vec![("broker.listen", Some("nowhere".into()))]).unwrap_err();
        let text = failure.text();
        assert!(text.contains("broker.listen") && text.contains("flag"), "{text}");
        assert_eq!(failure.exit(), Exit::Usage);
    }

    #[test]
    fn a_password_in_an_endpoint_is_refused_and_not_repeated() {
        for endpoint in ["http://me:s3cret@127.0.0.1:1", "me:s3cret@host:1/", "https://s3cret@host"] {
            let mut global = global();
            global.endpoint = Some(endpoint.into());
            let failure = load(&global, Vec::new()).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            assert!(failure.text().contains("endpoint") && !failure.text().contains("s3cret"), "{}", failure.text());
        }
        assert!(!has_user_info("http://host/a@b") && !has_user_info("http://host?a=b@c"));
    }

    #[test]
    fn an_unknown_setting_in_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("refstream.toml");
        std::fs::write(&path, "[broker]\nlisten_on = \"127.0.0.1:1\"\n").unwrap();
        let mut global = global();
        global.config = Some(path);
        let text = load(&global, Vec::new()).unwrap_err().text().to_owned();
        assert!(text.contains("listen_on") && text.contains("refstream.toml"), "{text}");
    }
}
