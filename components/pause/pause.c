/*
 * pause holds a Pod's namespaces open: it is the first process in them, and
 * does nothing else for as long as the Pod lives.
 *
 * As process 1 of a shared PID namespace it inherits every orphan of the Pod,
 * so it reaps them. It ends with 0 on SIGTERM or SIGINT, and refuses arguments
 * other than --version.
 *
 * In C, because the smallest static Go program is larger than the image may be.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PAUSE_VERSION
#error "PAUSE_VERSION must be defined, as a string"
#endif

/* Ignore errors: the standard streams may be closed. */
static void say(int fd, const char *text)
{
	ssize_t written = write(fd, text, strlen(text));
	(void)written;
}

/* Several children may have ended for a single SIGCHLD. */
static void reap(void)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(int argc, char **argv)
{
	sigset_t awaited;
	int signal_number;

	if (argc == 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
		say(STDOUT_FILENO, "pause " PAUSE_VERSION "\n");
		return 0;
	}
	if (argc != 1) {
		say(STDERR_FILENO, "usage: pause [--version]\n");
		return 2;
	}

	/*
	 * Signals are blocked and waited for, without handlers, so that none is
	 * lost. The kernel keeps a blocked signal pending even for process 1, whose
	 * unhandled signals it otherwise drops.
	 */
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGINT);
	sigaddset(&awaited, SIGTERM);
	sigaddset(&awaited, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &awaited, NULL) != 0) {
		say(STDERR_FILENO, "pause: error: block signals\n");
		return 1;
	}
	reap(); /* children that ended before the signals were blocked */

	for (;;) {
		signal_number = sigwaitinfo(&awaited, NULL);
		if (signal_number == SIGCHLD)
			reap();
		else if (signal_number == SIGINT || signal_number == SIGTERM)
			return 0;
		else if (errno != EINTR) { /* a debugger or a stop interrupts the wait */
			say(STDERR_FILENO, "pause: error: wait for a signal\n");
			return 1;
		}
	}
}
