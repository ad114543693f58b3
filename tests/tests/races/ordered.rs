use std::collections::HashMap; use std::sync::*; use std::sync::mpsc; use std::thread; use std::sync::atomic::*;
/// glibc's free reads the size of its piece without a lock, while a neighbour's is freed: a race, if a harmless one.
/// This allocator has none.
struct Bump; static NEXT: AtomicUsize = AtomicUsize::new(0); const ROOM: usize = 16 << 20; static mut MEMORY: [u128; ROOM / 16] = [0; ROOM / 16];
unsafe impl std::alloc::GlobalAlloc for Bump {
    unsafe fn alloc(&self, l: std::alloc::Layout) -> *mut u8 { let at = NEXT.fetch_add(l.size() + l.align(), Ordering::Relaxed); assert!(at + l.size() + l.align() <= ROOM); let p = unsafe { (&raw mut MEMORY).cast::<u8>().add(at) }; p.wrapping_add(p.align_offset(l.align())) }
    unsafe fn dealloc(&self, _: *mut u8, _: std::alloc::Layout) {}
}
#[global_allocator] static BUMP: Bump = Bump;
static ONCE: OnceLock<String> = OnceLock::new(); static N: AtomicU64 = AtomicU64::new(0);
fn main() {
    let table = Arc::new(Mutex::new(HashMap::new())); let rw = Arc::new(RwLock::new(0u64)); let (tx, rx) = mpsc::channel::<String>(); let (stx, srx) = mpsc::sync_channel::<Vec<u64>>(2);
    let pair = Arc::new((Mutex::new(false), Condvar::new())); let barrier = Arc::new(Barrier::new(4));
    let all: Vec<_> = (0..4u64).map(|i| { let (table, rw, tx, stx, pair, barrier) = (table.clone(), rw.clone(), tx.clone(), stx.clone(), pair.clone(), barrier.clone());
        thread::spawn(move || { for k in 0..50 { table.lock().unwrap().insert(i * 100 + k, format!("{i} {k}")); *rw.write().unwrap() += 1; let v = *rw.read().unwrap(); N.fetch_add(v, Ordering::Relaxed); tx.send(format!("m{k}")).unwrap(); if k % 10 == 0 { stx.send(vec![k; 100]).unwrap(); } ONCE.get_or_init(|| "once".into()); }
            barrier.wait(); *pair.0.lock().unwrap() = true; pair.1.notify_all(); i }) }).collect();
    drop((tx, stx));
    let r = thread::spawn(move || srx.iter().map(|v| v.iter().sum::<u64>()).sum::<u64>());
    let got = rx.iter().map(|s| s.len()).sum::<usize>();
    let mut g = pair.0.lock().unwrap(); while !*g { g = pair.1.wait(g).unwrap(); } drop(g);
    let sum: u64 = all.into_iter().map(|t| t.join().unwrap()).sum();
    let mut local = vec![1u64; 1000]; thread::scope(|s| { for c in local.chunks_mut(250) { s.spawn(move || c.iter_mut().for_each(|x| *x += 1)); } });
    println!("{} {got} {sum} {} {} {}", table.lock().unwrap().len(), r.join().unwrap(), N.load(Ordering::Relaxed), local.iter().sum::<u64>());
}
