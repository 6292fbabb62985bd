//! Generates the gRPC code, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["refstream/v1/refstream.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".refstream.v1.PartitionBatch.batch")
        .bytes(".refstream.v1.TailBatch.batch")
        .compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
