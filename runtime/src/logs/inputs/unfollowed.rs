//! What a recording of inputs cannot follow: from there on it is not replayed. The program goes on.

use crate::base::ceiling;
use crate::base::census;
use crate::base::facts::facts;
use crate::base::last_words::Line;
use crate::base::maps;
use crate::base::sys::{self, nr};
use crate::logs::inputs::{handed, mappings, view};
use crate::logs::moment::Call;
use crate::thread::Thread;
use abi::event::{Event, WHOLE_UNIT};
use abi::ids::LiveAddr;
use abi::syscalls::{find, OLD};
use core::ffi::CStr;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// EPERM, EBADF, ENOTTY, ENOSYS: nobody has looked at the memory.
const REFUSED: [i32; 4] = [1, 9, 25, 38];

/// It has been noted.
static HAPPENED: AtomicBool = AtomicBool::new(false);

/// Whether something could not be followed.
pub fn has_happened() -> bool {
    HAPPENED.load(Relaxed)
}

/// The user has been told.
static SAID: AtomicBool = AtomicBool::new(false);

/// Notes that what follows cannot be replayed: `why`. The user is told once.
pub fn unfollowed(thread: &mut Thread, why: &str) {
    note(thread, why, "");
}

/// The same, of what is followed where threads are watched: what they load is compared, whoever has stored it.
pub fn unfollowed_unwatched(thread: &mut Thread, why: &str) {
    if thread.recorder.to_file() && !is_watched_instead(thread) {
        unfollowed_meanwhile(thread, why);
    }
}

/// Whether the threads of the process are watched from behind the call on, or can be.
pub fn is_watched_instead(thread: &Thread) -> bool {
    // (A child of vfork stands in for the thread that made it.)
    let may_all = || !thread.vfork_child && !census::is_lent();
    // Behind what could not be followed with one order, none begins.
    let is_sound = census::live() == 1 || !has_happened();
    let can = view::waits()
        && (!view::only_if_shared() || is_sound && may_all())
        && view::may_begin(thread);
    if can {
        view::want();
    }
    can
}

/// The same, of what happens while the call is under way and other threads run.
pub fn unfollowed_meanwhile(thread: &mut Thread, why: &str) {
    if !thread.recorder.to_file() {
        return;
    }
    // Views have no room near a program at fixed addresses.
    let has_room = facts().window != 0 || ceiling::above().is_some();
    let is_way_out = !view::is_watched() && has_room;
    note(thread, why, if is_way_out { " (--threads watched may follow it)" } else { "" });
}

fn note(thread: &mut Thread, why: &str, way_out: &str) {
    if !thread.recorder.to_file() {
        return;
    }
    let pc = thread.syscall_pc;
    if !SAID.swap(true, Relaxed) {
        crate::say!("{why} (at {pc:#x}): the recording cannot be replayed from there on{way_out}");
    }
    HAPPENED.store(true, Relaxed);
    thread.event(WHOLE_UNIT, &Event::Unfollowed { pc: LiveAddr(pc), why: why.as_bytes() });
}

/// Looks whether the call, which has returned `result`, can be followed.
pub fn look(thread: &mut Thread, call: &Call, result: usize) {
    const IOCTL: usize = 16;
    const SHM_EXEC: usize = 0o100000;
    const USERFAULTFD: usize = 323;
    const REMAP_FILE_PAGES: usize = 216;
    const MODIFY_LDT: usize = 154;
    let error = sys::check(result).err();
    match call.number {
        // What a watched thread loads is compared, whoever has stored it.
        _ if call.writes.elsewhere
            && !view::is_watched()
            && error.is_none_or(|errno| !REFUSED.contains(&errno)) =>
        {
            let name = find(call.number as u64).map_or("unknown system call", |call| call.name);
            let mut why = Line::new();
            let _ = match call.number {
                IOCTL => write!(why, "what ioctl {:#x} writes is not known", call.args[1] as u32),
                number if number as u64 & OLD != 0 => {
                    let old = number as u64 & !OLD;
                    write!(why, "what 32-bit system call {old} (int 0x80) writes is not known")
                }
                number => write!(why, "what system call {number} ({name}) writes is not known"),
            };
            unfollowed_unwatched(thread, core::str::from_utf8(why.text()).unwrap_or(name));
        }
        _ if error.is_some() => {}
        nr::PKEY_ALLOC => unfollowed(thread, "memory is protected with keys (pkey_alloc)"),
        // What others have stored there would be code.
        nr::SHMAT if call.args[2] & SHM_EXEC != 0 => unfollowed(thread, mappings::ATTACHED),
        nr::SHMAT => {
            let len = maps::attached_len(call.args[0]);
            mappings::attached_segment(thread, call.args[2], result as u64, len);
        }
        nr::IO_SETUP => {
            let ring = maps::ring(call.args[1] as u64);
            let (start, len) =
                ring.map_or((0, None), |ring| (ring.start, Some(ring.end - ring.start)));
            mappings::attached(
                thread,
                start,
                len,
                "the kernel writes to memory behind calls (io_setup)",
            );
        }
        USERFAULTFD => unfollowed(thread, "memory is filled in from outside (userfaultfd)"),
        REMAP_FILE_PAGES => unfollowed(thread, "pages of a file are rearranged (remap_file_pages)"),
        MODIFY_LDT if call.args[0] & !0x10 == 1 => {
            unfollowed(thread, "segments are defined (modify_ldt)");
        }
        nr::OPEN | nr::OPENAT | nr::OPENAT2 | nr::CREAT if opens_memory(call, result) => {
            unfollowed(thread, "memory is written by way of a file (/proc/PID/mem)");
        }
        number => {
            if !view::is_watched() {
                handed::look(thread, call, result);
            }
            if let Some(fd) = changed_by(number, &call.args, result) {
                mappings::changed(thread, fd, || bytes_changed_by(number, &call.args, result));
            }
            if number == nr::TRUNCATE {
                mappings::changed_path(thread, call.args[0]);
            }
        }
    }
}

const WRITE: usize = 1;
const PWRITE64: usize = 18;
const WRITEV: usize = 20;
const PWRITEV: usize = 296;

/// The descriptor of the file that a call writes to.
fn changed_by(number: usize, args: &[usize; 6], result: usize) -> Option<usize> {
    const EMPTIES: usize = 0o1000;
    const SENDFILE: usize = 40;
    const FTRUNCATE: usize = 77;
    const SPLICE: usize = 275;
    const FALLOCATE: usize = 285;
    const COPY_FILE_RANGE: usize = 326;
    const PWRITEV2: usize = 328;
    match number {
        WRITE | PWRITE64 | WRITEV | SENDFILE | FTRUNCATE | FALLOCATE | PWRITEV | PWRITEV2 => {
            Some(args[0])
        }
        SPLICE | COPY_FILE_RANGE => Some(args[2]),
        nr::CREAT => Some(result),
        nr::OPEN if args[1] & EMPTIES != 0 => Some(result),
        nr::OPENAT if args[2] & EMPTIES != 0 => Some(result),
        _ => None,
    }
}

/// Which bytes of the file that is, if the call says so.
fn bytes_changed_by(number: usize, args: &[usize; 6], result: usize) -> Option<Range<u64>> {
    const LSEEK: usize = 8;
    const SEEK_CUR: usize = 1;
    let from = match number {
        PWRITE64 | PWRITEV => args[3],
        WRITE | WRITEV => {
            // SAFETY: the kernel says where the descriptor stands, which is behind what was written.
            let behind = unsafe { sys::call(LSEEK, &[args[0], 0, SEEK_CUR]) };
            behind.ok()?.checked_sub(result)?
        }
        _ => return None,
    };
    Some(from as u64..from.checked_add(result)? as u64)
}

/// Whether the call has opened the memory of this process for writing.
fn opens_memory(call: &Call, fd: usize) -> bool {
    const ACCESS_MODE: usize = 3;
    let flags = match call.number {
        nr::OPEN => call.args[1],
        nr::OPENAT => call.args[2],
        // The flags are in memory, which may have changed: whatever they are.
        _ => 1,
    };
    if flags & ACCESS_MODE == 0 {
        return false;
    }
    let mut path = [0u8; 64];
    let path = mappings::path_of(fd, &mut path);
    let middle = path.strip_prefix(b"/proc/").and_then(|rest| rest.strip_suffix(b"/mem"));
    middle.is_some_and(|middle| !is_of_another(middle))
}

/// Whether `4711` or `4711/task/4712`, of `/proc`, is another process, as those are that a debugger opens.
fn is_of_another(middle: &[u8]) -> bool {
    let process = middle.split(|&byte| byte == b'/').next().unwrap_or_default();
    // (The number that it has there.)
    let mut own = [0u8; 16];
    let args = [c"/proc/self".as_ptr() as usize, own.as_mut_ptr() as usize, own.len()];
    // SAFETY: the kernel reads a path that ends in a zero, and writes to the buffer.
    let Ok(len) = (unsafe { sys::call(nr::READLINK, &args) }) else { return false };
    if own.get(..len) == Some(process) {
        return false;
    }
    // A thread has a folder there, too, which is not listed.
    let mut path = Line::new();
    let number = core::str::from_utf8(process).unwrap_or_default();
    let is_thread = write!(path, "/proc/self/task/{number}\0").is_err()
        || CStr::from_bytes_with_nul(path.text()).is_ok_and(|path| {
            let args = [path.as_ptr() as usize, own.as_mut_ptr() as usize, own.len()];
            // SAFETY: as above. It is no link: EINVAL.
            let read = unsafe { sys::call(nr::READLINK, &args) };
            read != Err(sys::ENOENT)
        });
    !is_thread
}
