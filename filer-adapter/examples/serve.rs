//! Serves a folder over S3 until Ctrl-C: `cargo run -p refstream-filer-adapter --features embedded --example serve -- DIR [ADDRESS]`.

use refstream_filer_adapter::embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server};
use std::{error::Error, path::PathBuf};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: serve DIR [ADDRESS]")?);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7402".to_owned()).parse()?;
    let store = FileStore::open(&dir, "refstream", FileStoreOptions::default())?;
    let keys = EmbeddedKeys::load_or_generate(&dir)?;
    let server = S3Server::start(store, keys.clone(), address).await?;
    println!("endpoint   {}", server.endpoint());
    println!("bucket     refstream");
    println!("access key {}", keys.access_key());
    println!("secret key in {}", dir.join("credentials.toml").display());
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}
