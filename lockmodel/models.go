package main

// limit is the number of states that fit into about 6 GB of memory.
const limit = 20_000_000

// model is one part of the algorithm.
type model struct {
	name     string
	question string
	// worlds returns the configurations, without the rule of mutation; "": with all rules.
	worlds    func(full bool, mutation string) []func() result
	mutations []mutation
	redundant []mutation // nothing is found without these rules
}

// mutation removes one rule of the algorithm.
type mutation struct {
	name string
	rule string
}

func exploring[S comparable](w world[S]) func() result {
	return func() result { return explore(w, limit) }
}

// run explores the configurations until one has a violation.
func (m *model) run(full bool, mutation string) result {
	var sum result
	for _, w := range m.worlds(full, mutation) {
		r := w()
		sum.states += r.states
		sum.steps += r.steps
		sum.depth = max(sum.depth, r.depth)
		sum.cut = sum.cut || r.cut
		if r.violated != "" {
			sum.violated, sum.trace = r.violated, r.trace
			break
		}
	}
	return sum
}

var models = []model{
	{
		name:     "lease",
		question: "is a write ever on its way while another mount holds the lock?",
		worlds:   leaseWorlds,
		mutations: []mutation{
			{"nodeadline", "a write is issued only before the deadline"},
			{"margin", "the margin is W + D, not one tick less"},
			{"answered", "a renewal counts from when it was sent, not from its answer"},
			{"freshterm", "after a suspension the deadline is that of the renewal, not a new one"},
			{"revive", "lost is for ever"},
			{"revokeatonce", "a lost session is revoked when its writes have landed, not at once"},
			{"releasefirst", "writes land before the release"},
		},
		redundant: []mutation{
			{"sentbefore", "a suspension ends only by a renewal that was sent after it began"},
		},
	},
	{
		name:     "break",
		question: "and if operators break locks, or delete what they should not?",
		worlds:   breakWorlds,
		mutations: []mutation{
			{"noverify", "a suspension ends only if the entries still exist"},
			{"thaw", "an answer is judged by the clock at the moment it is read"},
			{"revokeatonce", "a lost session is revoked when its writes have landed, not at once"},
			{"breakdeletes", "only the holder deletes the entry of a lock that is broken"},
			{"breakunmarked", "the holder of a broken lock marks it lost"},
			{"breakinflight", "writes land before the entry of a broken lock is deleted"},
		},
		redundant: []mutation{
			{"sentbefore", "a suspension ends only by a renewal that was sent after it began"},
		},
	},
	{
		name:     "successor",
		question: "and if a new daemon revokes the session of a dead one?",
		worlds:   successorWorlds,
		mutations: []mutation{
			{"noflock", "a successor holds the flock of the session that it revokes"},
			{"noboot", "a successor revokes sessions of its own boot only"},
			{"nosync", "a successor syncs the volume before it revokes"},
		},
	},
	{
		name:     "queue",
		question: "are waiters granted in order, and does every wait end?",
		worlds:   queueWorlds,
		mutations: []mutation{
			{"predecessor", "a waiter waits for all entries ahead, not for the last of them"},
			{"barge", "a waiter waits for waiters too"},
			{"nogap", "a watch that begins late is followed by a read"},
			{"nofence", "an unanswered request is made void before it is repeated or cleaned up"},
			{"nodiscard", "a wait that is given up deletes its entry"},
		},
	},
	{
		name:     "tree",
		question: "can a directory move away over a file that is open below it?",
		worlds:   treeWorlds,
		mutations: []mutation{
			{"noabove", "an acquisition compares the directories above and below"},
			{"noprove", "a path is resolved again after the grant"},
			{"found", "where a directory was found under a lock counts only if its stamp is older than the lock"},
			{"nostamp", "a directory entry is put with a stamp"},
			{"unread", "the answer that grants a file shows the stamp of its directory"},
		},
	},
	{
		name:     "leases",
		question: "and if each lock is an object of its own, and nothing reads two?",
		worlds:   leasesWorlds,
		mutations: []mutation{
			{"condition", "a write names the version that it replaces"},
			{"heed", "a file waits for a directory's entry"},
			{"giveway", "a directory's entry gives way to a file's"},
			{"afterwards", "after an entry is put, its owner looks only once the watch has shown it"},
			{"onewatch", "one watch shows both, in order"},
			{"dead", "an entry of a session that has ended does not count"},
			{"fence", "a request that was given up unanswered is made void"},
		},
	},
	{
		name:     "dirleases",
		question: "and if a directory is delegated there?",
		worlds:   dirLeasesWorlds,
		mutations: []mutation{
			{"norecall", "a request recalls the delegation above its file"},
			{"heed", "a file's entry counts only if no delegation is seen once the watch has shown the entry"},
			{"afterwards", "a file's owner looks for a delegation only once the watch has shown the entry"},
			{"missed", "a file's entry does not count if a delegation has gone since it was put"},
			{"corpse", "a delegation of a dead mount counts unless it was known to be dead before"},
			{"giveway", "a delegation gives way to another mount's entry of a file"},
			{"looksatonce", "a delegation's mount looks for files only once the watch has shown the delegation"},
			{"deletesfirst", "a delegation is deleted only when what is open has entries"},
			{"across", "a file's entry waits for those of directories above"},
			{"unheeded", "a delegation's mount renames no directory with a file open below it, and opens no file below one that it renames"},
			{"asked", "a delegation's mount renames no directory while it asks for an entry of a file below it"},
		},
	},
	{
		name:     "pulses",
		question: "does a session end if, and only if, its mount does not believe in it?",
		worlds:   pulsesWorlds,
		mutations: []mutation{
			{"openfirst", "the pulse is created before the session"},
			{"sessionfirst", "the pulse is deleted before the session"},
			{"condition", "the end names the version of the pulse that was not renewed"},
			{"fresh", "a keeper counts from when it first saw a pulse itself"},
			{"rest", "a session without a pulse is ended by any keeper"},
			{"takeover", "another keeps watch when there is no keeper"},
		},
	},
	{
		name:     "links",
		question: "does the lock of a file follow its names?",
		worlds:   linksWorlds,
		mutations: []mutation{
			{"noinode", "a file with several names is locked by its inode too"},
			{"noprove", "a path is resolved again after the grant"},
			{"norecount", "names are counted again after the grant"},
			{"norelook", "a change of names looks at the names again after the grant"},
			{"noshare", "a new name's lock, and the inode's, go to the open handles"},
			{"noheir", "removing the last name but one gives the open handles the lock of the name that is left"},
			{"norekey", "a rename takes the open handles' locks along"},
			{"trusting", "the effect of a change of names is read from the volume, not from the call's answer"},
			{"narrowing", "a name that a file may yet get stays locked by its open handles"},
			{"lateknown", "a hold is registered before its path is proved"},
			{"nogate", "no hold is registered while its mount changes the names"},
		},
	},
	{
		name:     "names",
		question: "does every wait for a file of several names end?",
		worlds:   namesWorlds,
		mutations: []mutation{
			{"atonce", "a request enters the line of a name only when it has the inode"},
			{"namefirst", "a request enters the line of the inode before that of a name"},
			{"nopass", "an owner that has a key passes, on its mount, the requests that wait for that key"},
			{"keeps", "a request that has locked one name of a file with several releases it before it asks for the inode"},
			{"shares", "a request in the line of the inode shares no name with others of its owner"},
		},
	},
	{
		name:     "kept",
		question: "may a mount keep a lock that nobody else wants?",
		worlds:   keptWorlds,
		mutations: []mutation{
			{"norecall", "a request recalls the entry that is kept"},
			{"notry", "a request that only tries recalls too"},
			{"forgets", "a recall that is heard before the answer counts"},
			{"takes", "nobody takes over what was recalled"},
			{"reuses", "nobody takes over what is being released"},
			{"barge", "a lock is taken over in order of the local queue"},
			{"stale", "a lock is taken over only after a recent read of the recalls"},
			{"answeredread", "the read of the recalls counts from when it was sent, not from its answer"},
			{"several", "a request for several keys takes them over together, or gives them back first"},
			{"alone", "a reader has the entry given back"},
			{"sametoken", "each owner of an entry has a token of its own"},
			{"usedup", "when the numbers of an entry are used up, the service is asked anew"},
			{"silent", "a mount that uses what was recalled says so"},
			{"anytold", "the answer to a recall names it"},
			{"blindtell", "a mount says that it uses what was recalled only if its entry stands"},
			{"twice", "a repeated Txn puts no second entry beside one that may be kept"},
			{"nofence", "an unanswered request, and its recall, is made void"},
			{"leaves", "a recall is deleted with its request"},
			{"forever", "an idle entry is given back in the end"},
			{"outlives", "idle entries end with their session"},
		},
		redundant: []mutation{
			{"later", "an idle entry that is recalled is deleted at once"},
		},
	},
	{
		name:     "delegated",
		question: "and all files below a directory?",
		worlds:   delegWorlds,
		mutations: []mutation{
			{"norecall", "a request recalls the D above its file"},
			{"forgetsD", "a recall that is heard before D's answer counts"},
			{"uncompared", "a request compares the D above its file"},
			{"inline", "a request puts nothing while the D above its file stands"},
			{"owncounts", "a mount's requests ignore its own D"},
			{"foreign", "no D is taken where another mount has a file's entry"},
			{"oldtoken", "an entry that the mount has got since gives tokens their revision"},
			{"nested", "no D is taken above or below another mount's"},
			{"renamed", "no D is taken above or below a directory that is renamed"},
			{"unheeded", "a mount with D renames no directory with a file open below it, and opens no file below one that it renames"},
			{"asked", "a mount with D renames no directory while the service may be granting a file below it"},
			{"deletesfirst", "D is deleted only when the files that are open have entries"},
			{"opensmeanwhile", "nothing is opened by D when it ends"},
			{"early", "a file that is closed while its entry is asked for is released after the answer"},
			{"leaveclosed", "the entry of a file that is closed then is deleted"},
		},
	},
	{
		name:     "settled",
		question: "and of a file that has another name elsewhere?",
		worlds:   settledWorlds,
		mutations: []mutation{
			{"unsettled", "an open of a file that was found reads whether the delegation stands"},
			{"early", "an open reads that only after it has seen the names under the lock"},
			{"both", "a name is remembered as the only one if the inode is not locked beside it"},
			{"remembers", "the only name is forgotten when it is locked for anything but an open"},
			{"anylock", "an open settles a lock that its owner has got for something else"},
			{"meanwhile", "nothing is remembered of a lock that its owner has had to change the name"},
			{"unraised", "a lock that is not settled gets the token of its entry in a recall"},
			{"unseen", "an entry that the mount has got below the directory raises the later tokens"},
			{"onename", "a link locks the name that it is made of"},
			{"noinode", "a file with several names is locked by its inode too"},
		},
	},
	{
		name:     "private",
		question: "may a mount keep the table of a file's flocks to itself?",
		worlds:   privateWorlds,
		mutations: []mutation{
			{"uncompared", "a table becomes private only if nobody has put a row since it was read"},
			{"heed", "a private row conflicts with every lock of others"},
			{"notry", "a request that only tries stands in line too, which recalls the private table"},
			{"unlisted", "the Txn that publishes has the list of what is held"},
			{"meanwhile", "a mount grants nothing while it publishes its list"},
			{"takes", "a mount grants nothing by itself after it has seen another mount's row"},
			{"stale", "a mount grants nothing by itself if it has not read the table for long"},
			{"unflushed", "what was written under the table is on the volume before it is published"},
			{"flushesfirst", "an unlock while the table is published flushes by itself"},
			{"skips", "the first lock under a private table looks at the volume"},
			{"nofence", "an unanswered put is made void"},
			{"forever", "a table that is idle is published as well"},
			{"keepsidle", "an idle private table is given back in the end"},
			{"outlives", "a private table ends with its session"},
		},
		redundant: []mutation{
			{"foreign", "a table becomes private only if no other mount has a row there"},
		},
	},
}

// newSession has two mounts. The second one never has trouble unless both may.
func newSession(both bool, mut string) *sessionWorld {
	w := &sessionWorld{mounts: 2, ops: 1, ttl: 4, w: 1, d: 1, mut: mut}
	w.well[1] = !both
	return w.times(4, 1, 1)
}

func (c *sessionWorld) times(ttl, w, d int8) *sessionWorld {
	c.ttl, c.w, c.d, c.margin = ttl, w, d, w+d
	if c.mut == "margin" {
		c.margin--
	}
	return c
}

func leaseWorlds(full bool, mut string) []func() result {
	if !full {
		return []func() result{exploring(newSession(false, mut))}
	}
	twice, shared, late := newSession(false, mut), newSession(false, mut), newSession(false, mut)
	three := newSession(false, mut)
	twice.ops = 2
	shared.readers, shared.ops = true, 2
	late.give = 2
	three.mounts, three.well[2] = 3, true
	return []func() result{
		exploring(twice), exploring(shared), exploring(late), exploring(three),
		exploring(newSession(false, mut).times(6, 1, 3)),
		exploring(newSession(false, mut).times(6, 3, 1)),
		exploring(newSession(true, mut)),
	}
}

func breakWorlds(full bool, mut string) []func() result {
	w := newSession(false, mut)
	w.breaks = true
	if !full {
		return []func() result{exploring(w)}
	}
	w.ops = 2
	succeeded := newSession(false, mut)
	succeeded.breaks, succeeded.succeed = true, true
	three := newSession(false, mut)
	three.breaks, three.mounts, three.well[2] = true, 3, true
	return []func() result{exploring(w), exploring(succeeded), exploring(three)}
}

func successorWorlds(full bool, mut string) []func() result {
	w := newSession(false, mut)
	w.succeed = true
	if mut == "noboot" {
		w.node[1] = 1
	}
	if !full {
		return []func() result{exploring(w)}
	}
	w.ops = 2
	elsewhere := newSession(false, mut)
	elsewhere.succeed, elsewhere.node[1] = true, 1
	slow := newSession(false, mut)
	slow.succeed = true
	return []func() result{exploring(w), exploring(elsewhere), exploring(slow.times(7, 3, 1))}
}

func queueWorlds(full bool, mut string) []func() result {
	if !full {
		return []func() result{exploring(&queueWorld{mounts: 3, ops: 1, faults: 2, readers: true, mut: mut})}
	}
	return []func() result{
		exploring(&queueWorld{mounts: 3, ops: 1, faults: 4, mut: mut}),
		exploring(&queueWorld{mounts: 2, ops: 2, faults: 3, mut: mut}),
		exploring(&queueWorld{mounts: 3, ops: 2, faults: 1, mut: mut}),
		exploring(&queueWorld{mounts: 3, ops: 2, faults: 1, readers: true, mut: mut}),
	}
}

func treeWorlds(full bool, mut string) []func() result {
	threads := func(ts ...treeThread) func() result { return exploring(&treeWorld{threads: ts, mut: mut}) }
	if !full {
		return []func() result{
			threads(treeThread{0, 1, 0}, treeThread{1, 0, 1}, treeThread{1, 1, 0}),
			threads(treeThread{0, 1, 1}, treeThread{1, 1, 1}),
			threads(treeThread{0, 2, 0}, treeThread{1, 1, 1}),
		}
	}
	return []func() result{
		threads(treeThread{0, 1, 1}, treeThread{0, 0, 1}, treeThread{1, 1, 1}),
		threads(treeThread{0, 2, 0}, treeThread{1, 1, 2}),
		threads(treeThread{0, 1, 0}, treeThread{0, 0, 2}, treeThread{1, 1, 1}),
	}
}

func pulsesWorlds(full bool, mut string) []func() result {
	w := &pulsesWorld{renewals: 2, deaths: 1, faults: 1, mut: mut}
	if full {
		w = &pulsesWorld{renewals: 6, deaths: 1, faults: 3, mut: mut}
	}
	return []func() result{exploring(w)}
}

func leasesWorlds(full bool, mut string) []func() result {
	mk := func(file, other, dir, deaths, faults int8) func() result {
		return exploring(&leasesWorld{
			ops: [leaseThreads]int8{file, other, dir}, dirs: [leaseThreads]bool{2: true}, deaths: deaths, faults: faults, mut: mut,
		})
	}
	if !full {
		return []func() result{mk(1, 1, 1, 0, 0), mk(1, 0, 1, 1, 1), mk(1, 1, 0, 1, 1)}
	}
	return []func() result{mk(1, 1, 1, 1, 1), mk(2, 0, 2, 1, 0), mk(2, 0, 1, 0, 2)}
}

func dirLeasesWorlds(full bool, mut string) []func() result {
	mk := func(opens, renames, other, delegations, deaths int8) func() result {
		return exploring(&dirLeasesWorld{ops: [leaseThreads]int8{opens, other}, renames: renames, delegations: delegations, deaths: deaths, mut: mut})
	}
	if !full {
		return []func() result{mk(2, 0, 1, 1, 0), mk(1, 0, 1, 1, 1), mk(1, 1, 1, 1, 0)}
	}
	return []func() result{mk(2, 0, 1, 1, 1), mk(1, 0, 1, 2, 1), mk(1, 1, 1, 1, 1)}
}

func keptWorlds(full bool, mut string) []func() result {
	a, b, both := keptAsk{keys: 1}, keptAsk{keys: 2}, keptAsk{keys: 3}
	tryA, tryB := keptAsk{keys: 1, kind: tries}, keptAsk{keys: 2, kind: tries, nested: true}
	reading, nested := keptAsk{keys: 1, kind: reads}, keptAsk{keys: 1, kind: tries, nested: true}
	on := func(mount int, asks ...keptAsk) keptProgram { return keptProgram{mount, asks} }
	mk := func(w keptWorld, programs ...keptProgram) func() result {
		w.programs, w.mut = programs, mut
		return exploring(&w)
	}
	lossy, ending := keptWorld{faults: 1}, keptWorld{ends: 1}
	if !full {
		return []func() result{
			mk(keptWorld{}, on(0, a), on(0, reading), on(1, reading)),
			mk(ending, on(0, a), on(0, a), on(1, a)),
			mk(keptWorld{faults: 1, shows: true}, on(0, a), on(1, tryA)),
			mk(lossy, on(0, a, a), on(0, a), on(1, a)),
			mk(keptWorld{}, on(0, a), on(0, both), on(1, b, both)),
			mk(keptWorld{clock: true}, on(0, a), on(0, a), on(1, a)),
			mk(keptWorld{}, on(0, a, tryB), on(1, b, nested)),
		}
	}
	return []func() result{
		mk(keptWorld{faults: 1, clock: true}, on(0, a), on(0, a), on(1, a)),
		mk(keptWorld{ends: 1, shows: true}, on(0, a, a), on(1, tryA)),
		mk(keptWorld{}, on(0, a), on(0, a), on(1, a), on(2, a)),
		mk(keptWorld{ends: 1}, on(0, a), on(0, both), on(1, b, both)),
		mk(keptWorld{}, on(0, a), on(0, both), on(1, b), on(1, both)),
	}
}

func delegWorlds(full bool, mut string) []func() result {
	mk := func(w delegWorld, programs ...delegProgram) func() result {
		w.programs, w.mut = programs, mut
		return exploring(&w)
	}
	top := [delegMounts][delegDirs]int8{{1, 0}}
	nested := [delegMounts][delegDirs]int8{{1, 0}, {0, 1}}
	if full {
		return []func() result{
			mk(delegWorld{takes: top}, delegProgram{0, 0, 2}, delegProgram{1, 0, 1}, delegProgram{2, 0, 1}),
			mk(delegWorld{takes: [delegMounts][delegDirs]int8{{2, 0}}, ends: 1}, delegProgram{0, 0, 2}, delegProgram{1, 0, 2}),
			mk(delegWorld{takes: [delegMounts][delegDirs]int8{{2, 0}}, ends: 1}, delegProgram{0, 0, 2}, delegProgram{0, 1, 1}, delegProgram{1, 0, 1}, delegProgram{2, 1, 1}),
			mk(delegWorld{takes: [delegMounts][delegDirs]int8{{2, 0}}, ends: 1}, delegProgram{0, 1, 2}, delegProgram{0, renames, 2}, delegProgram{1, 1, 1}),
		}
	}
	return []func() result{
		mk(delegWorld{takes: top}, delegProgram{0, 0, 2}, delegProgram{0, 0, 1}, delegProgram{1, 0, 1}),
		mk(delegWorld{takes: top}, delegProgram{0, 0, 1}, delegProgram{0, 1, 1}, delegProgram{1, 0, 1}),
		mk(delegWorld{takes: nested}, delegProgram{0, 1, 1}, delegProgram{1, 1, 2}),
		mk(delegWorld{takes: top, ends: 1}, delegProgram{0, 0, 1}, delegProgram{1, 0, 2}),
		mk(delegWorld{takes: top}, delegProgram{0, 1, 1}, delegProgram{0, renames, 1}, delegProgram{1, 1, 1}),
		mk(delegWorld{takes: top}, delegProgram{0, 1, 1}, delegProgram{1, renames, 2}),
	}
}

func settledWorlds(full bool, mut string) []func() result {
	mk := func(first [settledNames]int8, delegations int8, threads ...linksThread) func() result {
		return exploring(&settledWorld{threads: threads, first: first, delegations: delegations, mut: mut})
	}
	const o, l, u, r = opening, linking, unlinking, renaming
	one, two, other := [settledNames]int8{1, 0, 0}, [settledNames]int8{1, 1, 0}, [settledNames]int8{1, 2, 2}
	thread := func(owner int8, ops ...int8) linksThread { return linksThread{owner, ops} }
	worlds := []func() result{
		mk(two, 1, thread(0, o, o), thread(0, o), thread(2, o, u)),
		mk(one, 1, thread(0, o, o), thread(2, l, o, u)),
		mk(other, 1, thread(0, o, r, o), thread(2, o, u)),
		mk(other, 1, thread(0, o, o), thread(0, r), thread(2, o, u)),
		mk(two, 1, thread(0, o, o, u), thread(0, l), thread(2, u)),
	}
	if !full {
		return worlds
	}
	return append(worlds,
		mk(two, 2, thread(0, o, o, u), thread(0, o, l), thread(2, o, u, o)),
		mk(one, 2, thread(0, o, l, u, o), thread(1, o, u), thread(2, o, l, o, u)),
		mk(other, 1, thread(0, o, r, o), thread(1, o, u), thread(2, o, u, o)),
	)
}

func linksWorlds(full bool, mut string) []func() result {
	mk := func(faults bool, first [maxNames]int8, x1, x2, y []int8) func() result {
		return exploring(&linksWorld{threads: []linksThread{{0, x1}, {0, x2}, {1, y}}, first: first, faults: faults, mut: mut})
	}
	const o, l, u, r = opening, linking, unlinking, renaming
	apart, linked := [maxNames]int8{1, 2, 0}, [maxNames]int8{1, 1, 2}
	failing := []func() result{
		mk(true, apart, []int8{o, u}, []int8{l}, []int8{l, o}),
		mk(true, linked, []int8{o}, []int8{u}, []int8{o}),
		mk(true, apart, []int8{o, r}, []int8{}, []int8{r, o}),
	}
	if !full {
		return failing
	}
	return append(failing,
		mk(false, apart, []int8{o, l, u}, []int8{l, r, o}, []int8{o, r}),
		mk(false, linked, []int8{o, u, r}, []int8{r, u, o}, []int8{o, l}),
		mk(false, linked, []int8{o, r, l, u}, []int8{o, u}, []int8{u, o}),
		mk(false, [maxNames]int8{1, 1, 1}, []int8{o, u, u}, []int8{u, o}, []int8{u, o}),
	)
}

func namesWorlds(full bool, mut string) []func() result {
	mk := func(owners ...namesProgram) func() result { return exploring(&namesWorld{owners: owners, mut: mut}) }
	both, other, a, b := []int8{0, 1}, []int8{1, 0}, []int8{0}, []int8{1}
	worlds := []func() result{
		mk(namesProgram{mount: 0, opens: both}, namesProgram{mount: 0, opens: other, unsure: true}, namesProgram{mount: 1, opens: b, unsure: true}),
		mk(namesProgram{mount: 0, opens: both, reads: true}, namesProgram{mount: 0, opens: b, reads: true}, namesProgram{mount: 1, opens: other}),
		mk(namesProgram{mount: 0, pod: 1, opens: a, unsure: true}, namesProgram{mount: 0, pod: 1, opens: a}, namesProgram{mount: 1, opens: other}),
	}
	if !full {
		return worlds
	}
	return append(worlds,
		mk(namesProgram{mount: 0, opens: both}, namesProgram{mount: 0, opens: other, unsure: true}, namesProgram{mount: 1, opens: both, unsure: true}, namesProgram{mount: 1, opens: b}),
		mk(namesProgram{mount: 0, opens: both, reads: true}, namesProgram{mount: 0, opens: b}, namesProgram{mount: 1, opens: other}, namesProgram{mount: 1, opens: both, reads: true}),
	)
}
