//! A virtual machine with a kernel of its own, emulated: programs run in it, and what they leave comes
//! back.
//!
//! The machine's only file system is in memory (an initramfs that is written here). Its first process
//! is a script of busybox's shell. What that has put below `/out` goes, as a tar file, to a raw disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
/// What drives the disk, in whatever order they need each other.
const MODULES: [&str; 6] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
];
/// Of the disk; what is not written takes no space.
const DISK: u64 = 2 << 30;
/// How much of what the machine said is shown.
const TAIL: usize = 40;

/// A kernel as its package has it, unpacked.
pub struct Kernel {
    pub name: String,
    image: PathBuf,
    modules: BTreeMap<&'static str, PathBuf>,
}

/// The kernels that are unpacked below `folder`, each in a folder of its own.
pub fn kernels(folder: &Path) -> Vec<Kernel> {
    let mut found: Vec<Kernel> = entries(folder).iter().filter_map(|at| kernel(at)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn kernel(package: &Path) -> Option<Kernel> {
    let mut images = entries(&package.join("boot")).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        Some((name, path))
    });
    let (name, image) = images.next()?;
    let mut modules = BTreeMap::new();
    for folder in ["virtio", "block"] {
        let folder = package.join("lib/modules").join(&name).join("kernel/drivers").join(folder);
        for module in MODULES {
            let path = folder.join(format!("{module}.ko"));
            if path.exists() {
                modules.insert(module, path);
            }
        }
    }
    Some(Kernel { name, image, modules })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// What a machine needs of this one, or why there is none.
pub fn missing() -> Option<String> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        return Some(format!("{QEMU} is not installed"));
    }
    match busybox() {
        Some(_) => None,
        None => Some("busybox-static is not installed".to_owned()),
    }
}

/// The path of a busybox that needs no libraries.
fn busybox() -> Option<PathBuf> {
    let all = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
    all.into_iter().find(|path| {
        // It names no interpreter.
        let interpreter = b"ld-linux-x86-64";
        fs::read(path).is_ok_and(|bytes| !bytes.windows(15).take(1 << 16).any(|w| w == interpreter))
    })
}

/// One run of a program in the machine.
pub struct GuestRun {
    /// The name of what it leaves.
    pub name: String,
    /// The path that the program sees.
    pub program: PathBuf,
    /// The file that runs in its place.
    pub file: Option<PathBuf>,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    pub env: Vec<(String, String)>,
}

/// What a run left.
#[derive(PartialEq, Eq, Debug)]
pub struct Left {
    pub status: String,
    pub stdout: String,
    pub stderr: String,
}

/// What is in the machine when it starts, and what it does.
pub struct Guest {
    files: BTreeMap<PathBuf, (u32, PathBuf)>,
    inputs: Vec<(PathBuf, Vec<u8>)>,
    script: String,
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Guest {
    pub fn new() -> Guest {
        Guest { files: BTreeMap::new(), inputs: Vec::new(), script: String::new() }
    }

    /// The file is there, too, with all that it is a link to.
    pub fn add(&mut self, path: &Path) -> io::Result<()> {
        let mode = fs::metadata(path)?.permissions().mode();
        self.files.insert(path.to_owned(), (mode, path.to_owned()));
        Ok(())
    }

    /// The program is there, too, with the libraries that it is linked with.
    pub fn add_program(&mut self, path: &Path) -> io::Result<()> {
        self.add(path)?;
        for library in libraries(path)? {
            self.add(&library)?;
        }
        Ok(())
    }

    /// The program runs, behind all that ran before.
    pub fn run(&mut self, run: &GuestRun) {
        let input = PathBuf::from(format!("/in/{}", run.name));
        let program = quoted(&run.program.display().to_string());
        let mut line = format!("echo run {}\n", run.name);
        if let Some(file) = &run.file {
            let file = quoted(&file.display().to_string());
            line.push_str(&format!("$b mount --bind {file} {program}\n"));
        }
        line.push_str("$b env -i");
        for (name, value) in &run.env {
            line.push_str(&format!(" {}", quoted(&format!("{name}={value}"))));
        }
        line.push_str(&format!(" {program}"));
        for arg in &run.args {
            line.push_str(&format!(" {}", quoted(arg)));
        }
        let name = &run.name;
        line.push_str(&format!(" < /in/{name} > /out/{name}.out 2> /out/{name}.err\n"));
        line.push_str(&format!("echo $? > /out/{name}.status\n"));
        if run.file.is_some() {
            line.push_str(&format!("$b umount {program}\n"));
        }
        self.script.push_str(&line);
        self.inputs.push((input, run.stdin.clone()));
    }

    /// Starts the machine with `kernel`, and unpacks what it leaves to `to`. Returns how long it took.
    pub fn boot(&self, kernel: &Kernel, limit: Duration, to: &Path) -> Result<Duration, String> {
        let trouble = |e: io::Error| format!("{}: {e}", to.display());
        let path = |name: &str| to.join(name);
        self.write_initramfs(kernel, &path("initramfs")).map_err(trouble)?;
        File::create(path("disk")).and_then(|f| f.set_len(DISK)).map_err(trouble)?;
        let started = Instant::now();
        let said = path("serial");
        // Its processors take turns: before 8.1 it may translate code that another processor is writing,
        // and keep what it has read of that.
        let mut child = Command::new(QEMU)
            .args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "3072"])
            .args(["-nodefaults", "-no-reboot", "-display", "none"])
            // A panic ends the machine.
            .args(["-append", "console=ttyS0 panic=-1 quiet"])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(path("initramfs"))
            .arg("-serial")
            .arg(format!("file:{}", said.display()))
            .arg("-drive")
            .arg(format!("file={},if=virtio,format=raw", path("disk").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path("qemu")).map_err(trouble)?)
            .spawn()
            .map_err(|e| format!("{QEMU}: {e}"))?;
        let ended = loop {
            match child.try_wait().map_err(trouble)? {
                Some(status) => break status.to_string(),
                None if started.elapsed() > limit => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break format!("killed after {} s", limit.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let serial = fs::read(&said).unwrap_or_default();
        let serial = String::from_utf8_lossy(&serial);
        let complaints = fs::read_to_string(path("qemu")).unwrap_or_default();
        if !serial.lines().any(|line| line.trim_end() == "all is written") {
            let lines: Vec<_> = serial.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
            return Err(format!(
                "the machine ended early ({ended}); it said\n{tail}\n{complaints}"
            ));
        }
        let taken = started.elapsed();
        let unpacked = Command::new("tar").arg("-xf").arg(path("disk")).arg("-C").arg(to).output();
        let unpacked = unpacked.map_err(|e| format!("tar: {e}"))?;
        for name in ["initramfs", "disk"] {
            fs::remove_file(path(name)).map_err(trouble)?;
        }
        match unpacked.status.success() {
            true => Ok(taken),
            false => Err(format!("tar: {}", String::from_utf8_lossy(&unpacked.stderr))),
        }
    }

    fn write_initramfs(&self, kernel: &Kernel, to: &Path) -> io::Result<()> {
        let mut archive = Archive::new(to)?;
        for folder in ["/proc", "/sys", "/dev", "/tmp", "/out"] {
            archive.folder(Path::new(folder))?;
        }
        let busybox = busybox().ok_or_else(|| io::Error::other("no busybox"))?;
        archive.file(Path::new("/bin/busybox"), 0o755, &fs::read(busybox)?)?;
        for (name, path) in &kernel.modules {
            archive.file(&Path::new("/modules").join(name), 0o644, &fs::read(path)?)?;
        }
        for (path, (mode, from)) in &self.files {
            archive.file(path, *mode, &fs::read(from)?)?;
        }
        for (path, bytes) in &self.inputs {
            archive.file(path, 0o644, bytes)?;
        }
        let init = format!(
            "#!/bin/busybox sh\n\
            b=/bin/busybox\n\
            $b mount -t proc proc /proc\n\
            $b mount -t sysfs sys /sys\n\
            $b mount -t devtmpfs dev /dev\n\
            for round in 1 2 3 4; do\n\
            for module in /modules/*; do $b insmod $module 2> /dev/null; done\n\
            done\n\
            $b grep -m1 'model name' /proc/cpuinfo\n\
            {}\
            if [ -b /dev/vda ] && $b tar -cf /dev/vda -C /out . && $b sync\n\
            then echo all is written\n\
            else $b dmesg | $b tail -n 30; echo nothing can be written\n\
            fi\n\
            $b poweroff -f\n",
            self.script
        );
        archive.file(Path::new("/init"), 0o755, init.as_bytes())?;
        archive.finish()
    }
}

impl Default for Guest {
    fn default() -> Guest {
        Guest::new()
    }
}

/// What the run of that name left in `folder`.
pub fn left(folder: &Path, name: &str) -> Result<Left, String> {
    let read = |what: &str| {
        let path = folder.join(format!("{name}.{what}"));
        let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Left { status: read("status")?, stdout: read("out")?, stderr: read("err")? })
}

/// The libraries that a program is linked with, ld.so among them, as ld.so itself says.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let ldd = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&ldd.stdout).into_owned();
    let words = text.lines().flat_map(str::split_whitespace);
    Ok(words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// An archive as the kernel unpacks it (cpio, "newc").
struct Archive {
    to: io::BufWriter<File>,
    folders: Vec<PathBuf>,
    number: u32,
}

impl Archive {
    fn new(to: &Path) -> io::Result<Archive> {
        Ok(Archive { to: io::BufWriter::new(File::create(to)?), folders: Vec::new(), number: 0 })
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let short = |len: usize| u32::try_from(len).map_err(io::Error::other);
        self.number += 1;
        let links = 1;
        let (size, name_size) = (short(bytes.len())?, short(name.len() + 1)?);
        write!(self.to, "070701")?;
        for word in [self.number, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
            write!(self.to, "{word:08X}")?;
        }
        // Header with name, and contents, end at a multiple of four.
        const HEADER: usize = 110;
        self.to.write_all(name.as_bytes())?;
        self.to.write_all(&[0; 4][..1 + (4 - (HEADER + name.len() + 1) % 4) % 4])?;
        self.to.write_all(bytes)?;
        self.to.write_all(&[0; 4][..(4 - bytes.len() % 4) % 4])
    }

    fn folder(&mut self, path: &Path) -> io::Result<()> {
        if path == Path::new("/") || self.folders.iter().any(|known| known == path) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        self.folders.push(path.to_owned());
        let mode = if path == Path::new("/tmp") { 0o41777 } else { 0o40755 };
        self.entry(&relative(path), mode, &[])
    }

    fn file(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        self.entry(&relative(path), 0o100_000 | mode & 0o7777, bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.to.flush()
    }
}

fn relative(path: &Path) -> String {
    path.display().to_string().trim_start_matches('/').to_owned()
}
