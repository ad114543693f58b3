// Threads, channels, scoped threads, mutexes; an exit status from main.
//#expect-status: 4
//#oracle: no: threads interleave differently
use std::sync::{mpsc, Arc, Mutex};
fn main() -> std::process::ExitCode {
    let (tx, rx) = mpsc::channel();
    let sum = Arc::new(Mutex::new(0u64));
    for i in 0..4u64 {
        let (tx, sum) = (tx.clone(), sum.clone());
        std::thread::spawn(move || {
            *sum.lock().unwrap() += i;
            tx.send(i * 10).unwrap();
        });
    }
    drop(tx);
    let mut got: Vec<u64> = rx.iter().collect();
    got.sort();
    let mut v = vec![1, 2, 3, 4];
    std::thread::scope(|s| {
        for x in v.iter_mut() {
            s.spawn(move || *x *= 2);
        }
    });
    println!("{got:?} {} {v:?} ok", sum.lock().unwrap());
    std::process::ExitCode::from(4)
}
