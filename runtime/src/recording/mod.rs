//! Recording: a thread's chunks and events, and the file that frames are allocated in.

pub mod lifecycle;
pub mod recorder;
pub mod trace_file;
