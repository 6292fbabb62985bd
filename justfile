# Names for commands; each recipe is one of them.

demo:
    cargo run --release -- demo

test:
    ./test

ci:
    ./.ci/run

bench:
    cargo run --release -p refstream-benches

sim seeds="1000":
    cargo run --release -p refstream-sim -- --seeds {{seeds}}

fuzz seconds="60":
    fuzz/run {{seconds}}
